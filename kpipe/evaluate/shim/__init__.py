"""Stand-ins for torch's C++ headers, and the library behind them."""
