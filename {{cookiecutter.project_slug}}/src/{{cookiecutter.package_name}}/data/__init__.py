"""Data modules: where the images come from and how a batch is made of them."""
