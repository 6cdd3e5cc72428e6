"""What controller and node say to each other, as values; bytes are the codec's business."""
