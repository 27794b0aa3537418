from fedacd.cli import main

main()
