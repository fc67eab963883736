"""Files that others read, made from the store, and the store made again from them."""
