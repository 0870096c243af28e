# Setup: about 20 s on a fresh Colab runtime, instant afterwards. Never touches torch or numpy.
import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

SOURCE = os.environ.get("SNAPREF_SOURCE", "snapref @ git+https://github.com/OWNER/snapref@v0.1.0")
GUARDED = ("torch", "torchvision", "numpy", "pillow", "ipywidgets")


def versions():
    names = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
    return {name: names.get(name) for name in GUARDED}


if importlib.util.find_spec("snapref") is None and Path("../snapref/config.py").exists():
    sys.path.insert(0, str(Path("..").resolve()))  # a clone: use it as it stands
elif importlib.util.find_spec("snapref") is None:
    before = versions()
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", SOURCE], check=True)
    importlib.invalidate_caches()
    changed = [name for name, now in versions().items() if now != before[name]]
    if changed:
        raise RuntimeError(f"the install replaced {changed}: choose Runtime > Restart session, then run this")

if "COLAB_RELEASE_TAG" in os.environ:  # Colab: lets widgets load their front ends
    from google.colab import output

    output.enable_custom_widget_manager()
