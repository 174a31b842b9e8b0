"""Data: sets, loaders, corruptions and augmentation."""
