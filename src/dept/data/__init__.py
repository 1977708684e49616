"""Images: finding and decoding them, views of them, batches of views."""
