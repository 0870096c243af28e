"""What the project exists for: a picture is read once, and every block of the model remembers it."""

from snapref.reference.branches import Adapter, MergeError, is_merged, merged
from snapref.reference.bundle import BundleError, load_bundle, save_bundle
from snapref.reference.cache import CacheError, PictureGroup, ReferenceCache
from snapref.reference.encode import NonFiniteError, encode_reference, joint_velocity
from snapref.reference.fingerprint import Fingerprint, PicturePrint
from snapref.reference.picture import PictureError, load_picture, to_pixels, visible_tokens

__all__ = [
    "Adapter", "BundleError", "CacheError", "Fingerprint", "MergeError", "NonFiniteError", "PictureError",
    "PictureGroup", "PicturePrint", "ReferenceCache", "encode_reference", "is_merged", "joint_velocity",
    "load_bundle", "load_picture", "merged", "save_bundle", "to_pixels", "visible_tokens",
]
