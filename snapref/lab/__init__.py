"""What the notebooks share: publishing, exercises, pictures, widgets. Import the room you need."""
