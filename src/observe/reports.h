/* The other places a run reports to, beside metrics.jsonl: those in report_to. */
#ifndef RH_OBSERVE_REPORTS_H
#define RH_OBSERVE_REPORTS_H

#include "core/error.h"
#include "observe/report.h"

enum rh_report_to { RH_REPORT_TENSORBOARD = 1, RH_REPORT_CSV = 2 };

/* `targets`: bits of enum rh_report_to, 0 for none; the run goes on from `step`. */
struct rh_reports;
int rh_reports_open(const char *dir, int targets, int64_t step, struct rh_reports **out) RH_MUST;
int rh_reports_step(struct rh_reports *reports, const struct rh_step_report *report) RH_MUST;
int rh_reports_eval(struct rh_reports *reports, const struct rh_eval_report *report) RH_MUST;
void rh_reports_close(struct rh_reports *reports); /* NULL is legal */

#endif
