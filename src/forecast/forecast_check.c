#include "forecast/forecast_check.h"

#include "core/alloc.h"
#include "run/check.h"
#include "run/executor.h"

#include <stdio.h>

struct forecast_check {
	struct rh_session *session;
	struct rh_check *check;
};

int forecast_check_open(struct rh_session *session, struct forecast_check **out)
{
	struct rh_check_options rooms;
	struct forecast_check *check = rh_alloc(1, sizeof *check);
	if (!check)
		return -ENOMEM;
	check->session = session;
	rh_record_rooms(session->executor, &rooms);
	rh_record_begin(session->executor);
	int rc = rh_check_create(&rooms, &check->check);
	if (rc)
		forecast_check_close(check);
	else
		*out = check;
	return rc;
}

int forecast_check_expect(struct forecast_check *check, int64_t micro_batches, int64_t step)
{
	const struct rh_config *config = check->session->config;
	int64_t version = step - config->optimizer_staleness;
	int is_local = check->session->plan.executor.schedule->update == RH_UPDATE_LOCAL; /* each stage has a version of its own */
	const struct rh_check_call call = {.step = step,
	                                   .micro_batches = micro_batches,
	                                   .version = is_local      ? -1
	                                              : version < 0 ? 0
	                                                            : version,
	                                   .trains = 1,
	                                   .updates = 1,
	                                   .clips = config->max_grad_norm > 0 && !is_local};
	return rh_check_expect(check->check, &call);
}

int forecast_check_run(struct forecast_check *check, struct rh_forecast_check *out)
{
	struct rh_check_fault fault;
	const struct rh_lanes *lanes = rh_record_lanes(check->session->executor);
	int rc = rh_updater_flush(check->session->updater);
	if (rc)
		return rc;
	rc = rh_check_run(check->check, lanes, &fault);
	if (rc)
		return rc;
	if (fault.position < 0)
		rh_check_finish(check->check, &fault);
	*out = (struct rh_forecast_check){.commands = lanes->commands, .waits = lanes->waits, .lanes = lanes->lanes};
	snprintf(out->text, sizeof out->text, "%s", fault.position >= 0 ? fault.text : "");
	return 0;
}

void forecast_check_close(struct forecast_check *check)
{
	if (!check)
		return;
	rh_check_destroy(check->check);
	rh_record_end(check->session->executor);
	rh_free(check);
}
