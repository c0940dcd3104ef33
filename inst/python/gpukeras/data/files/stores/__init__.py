"""Opens objects of S3, Google Cloud Storage, Azure and web servers."""
