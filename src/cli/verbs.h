/* One file a verb. Each takes its resolved configuration, prints its result on stdout and returns 0 or a negative errno with the line set;
 * VERB_SAYS_NO where the result is printed and a script should know that it is a no. */
#ifndef RH_CLI_VERBS_H
#define RH_CLI_VERBS_H

#include "config/config.h"

enum { VERB_SAYS_NO = 1 };

int verb_train(const struct rh_config *config) RH_MUST;
int verb_plan(const struct rh_config *config) RH_MUST;
int verb_stress(const struct rh_config *config) RH_MUST;
/* rh_machine_default_device, asked by another process: a driver does not serve the children of one that has opened it. */
const char *verb_stress_device(void);
int verb_verify(const struct rh_config *config) RH_MUST;
int verb_eval(const struct rh_config *config) RH_MUST;
int verb_generate(const struct rh_config *config) RH_MUST;
int verb_chat(const struct rh_config *config) RH_MUST;
int verb_merge(const struct rh_config *config) RH_MUST;
int verb_export(const struct rh_config *config) RH_MUST;
int verb_inspect(const struct rh_config *config) RH_MUST;
int verb_join(const struct rh_config *config) RH_MUST;
int verb_keys(const struct rh_config *config) RH_MUST;
int verb_doctor(const struct rh_config *config) RH_MUST;
/* Takes the words after the verb: its file is no configuration of this program. */
int verb_convert(int argc, char **argv) RH_MUST;
/* The same: its words are directories of runs. */
int verb_report(int argc, char **argv) RH_MUST;
int verb_top(int argc, char **argv) RH_MUST;

/* A JSON object as the verb's result: one line on stdout. Takes the object over. */
struct json_t;
int verb_print_json(struct json_t *object) RH_MUST;

#endif
