"""The contract as others read it: documents of the surfaces, and JSON Schemas generated from attrs values."""
