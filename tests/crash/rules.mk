# make crash [N=1000]: N kills of the real process, N seeds of the whole-run simulation, 10 N states that a power cut may leave.
N ?= 1000
CRASH := $(addprefix $(B)/tests/crash/,test_kill test_simulation test_replay)
crash: $(CRASH) $(B)/roundhouse
	@RH_BUILD=$(B) RH_CRASH_N=$(N) $(B)/tests/crash/test_kill
	@RH_BUILD=$(B) RH_CRASH_N=$(N) $(B)/tests/crash/test_simulation
	@RH_BUILD=$(B) RH_CRASH_STATES=$$((2 * $(N))) $(B)/tests/crash/test_replay
.PHONY: crash
