"""`kpipe run`: set everything up, keep the three stages alive on this machine, show what they do, sum up."""
