# make mutants [MUTANTS='WORD...']: builds each fault of tests/mutants/list (those whose entry holds a word), runs the tests that it names and says
# which finds it. None may survive.
mutants: all
	@tests/mutants/run.sh $(MUTANTS)
.PHONY: mutants
