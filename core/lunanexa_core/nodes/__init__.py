"""What the controller concludes about nodes: from their reports, and from their silence."""
