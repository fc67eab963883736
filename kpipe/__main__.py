from kpipe.cli import main

main()
