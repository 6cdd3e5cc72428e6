"""What is durable or exclusive on a local file system."""
