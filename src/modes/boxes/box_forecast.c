#include "modes/boxes/box_forecast.h"

#include "forecast/forecast.h"
#include "modes/boxes/box_table.h"

int box_forecast_norm(struct rh_session *session)
{
	struct rh_box *box = &session->box;
	double squares = 0, norm = 1;
	int rc = box_table_exchange(session, 2);
	if (!rc)
		rc = rh_box_take(box->link_below, 0, &squares, sizeof squares);
	if (!rc)
		rc = rh_updater_add_squares(session->updater, &squares);
	if (!rc)
		rc = rh_box_give(box, box->link_above, 0, &squares, sizeof squares);
	if (!rc)
		rc = rh_box_pass_down(box, 1, &norm, sizeof norm);
	if (rc)
		return rc;
	rh_updater_give_norm(session->updater, norm);
	return box_table_settle(session);
}

void box_forecast_describe(const struct rh_session *session, struct rh_forecast *out)
{
	int b = rh_model_shared_block(session->model);
	out->table.wire_bytes = session->box.table_bytes;
	if (b < 0)
		return;
	const struct rh_block *block = &session->model->block[b];
	int stored = session->model->dtype != RH_F32; /* apart from the sums of both uses */
	out->table.weights_bytes = rh_block_bytes(block, session->model->dtype);
	out->table.gradient_bytes = block->elements * (2 * 4 + (stored ? 2 : 0));
	out->table.state_bytes = rh_store_bytes(block, 1, &session->plan.store) - out->table.weights_bytes - out->table.gradient_bytes;
}
