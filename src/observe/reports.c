#include "observe/reports.h"

#include "core/alloc.h"
#include "observe/events.h"
#include "observe/table.h"

struct rh_reports {
	struct rh_events *events; /* NULL: not asked for */
	struct rh_table *table;
};

int rh_reports_open(const char *dir, int targets, int64_t step, struct rh_reports **out)
{
	struct rh_reports *reports = rh_alloc(1, sizeof *reports);
	int rc = reports ? 0 : -ENOMEM;
	if (!rc && targets & RH_REPORT_TENSORBOARD)
		rc = rh_events_open(dir, step, &reports->events);
	if (!rc && targets & RH_REPORT_CSV)
		rc = rh_table_open(dir, step, &reports->table);
	if (rc)
		rh_reports_close(reports);
	else
		*out = reports;
	return rc;
}

int rh_reports_step(struct rh_reports *reports, const struct rh_step_report *report)
{
	int rc = reports->events ? rh_events_step(reports->events, report) : 0;
	return rc || !reports->table ? rc : rh_table_step(reports->table, report);
}

int rh_reports_eval(struct rh_reports *reports, const struct rh_eval_report *report)
{
	int rc = reports->events ? rh_events_eval(reports->events, report) : 0;
	return rc || !reports->table ? rc : rh_table_eval(reports->table, report);
}

void rh_reports_close(struct rh_reports *reports)
{
	if (!reports)
		return;
	rh_events_close(reports->events);
	rh_table_close(reports->table);
	rh_free(reports);
}
