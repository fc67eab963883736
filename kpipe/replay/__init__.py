"""Any stage again from what is stored: train, score, evaluate, one trajectory."""
