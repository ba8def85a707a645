/* metrics.csv: a line for each logged step and each evaluation, for spreadsheets. What is not known is an empty field. */
#ifndef RH_OBSERVE_TABLE_H
#define RH_OBSERVE_TABLE_H

#include "core/error.h"
#include "observe/report.h"

/* Opens dir/metrics.csv and keeps its lines up to `step`; 0: makes a new file. */
struct rh_table;
int rh_table_open(const char *dir, int64_t step, struct rh_table **out) RH_MUST;
int rh_table_step(struct rh_table *table, const struct rh_step_report *report) RH_MUST;
int rh_table_eval(struct rh_table *table, const struct rh_eval_report *report) RH_MUST;
void rh_table_close(struct rh_table *table); /* NULL is legal */

#endif
