/* roundhouse plan EXPERIMENT.yaml --hardware NAME [--gpus N] [--as published] [--json]: what an experiment that is known by layer times
 * takes (config/experiment.h). */
#ifndef RH_CLI_PLAN_EXPERIMENT_H
#define RH_CLI_PLAN_EXPERIMENT_H

/* 1: argv[1] is `plan` and argv[2] such a file. */
int plan_experiment_is(int argc, char **argv);
/* Returns the exit status, as main does. */
int plan_experiment(int argc, char **argv);

#endif
