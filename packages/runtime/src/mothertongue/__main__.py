from mothertongue.command import main

main()
