from snapref.cli import app

app()
