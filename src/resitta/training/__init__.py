"""What methods train with: networks, losses, augmentation, change-point detection."""
