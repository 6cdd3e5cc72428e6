"""A node without a network: directed by bundles that people carry to it, heard of by reports that they carry away."""
