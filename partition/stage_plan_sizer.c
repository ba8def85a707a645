/* Counts the bytes that cuts would need on a device, without making a plan of them. */
#include "core/alloc.h"
#include "partition/stage_plan_internal.h"

struct rh_stage_plan_sizer {
	struct rh_stage_plan_request request;
	struct stage_planner planner;
};

int rh_stage_plan_sizer_create(const struct rh_stage_plan_request *request, struct rh_stage_plan_sizer **out)
{
	struct rh_stage_plan_sizer *sizer = rh_alloc(1, sizeof *sizer);
	*out = NULL;
	if (!sizer)
		return -ENOMEM;
	sizer->request = *request;
	sizer->planner = (struct stage_planner){.request = &sizer->request, .layers = request->model->layers};
	int rc = plan_open(&sizer->planner);
	if (rc)
		rh_stage_plan_sizer_destroy(sizer);
	else
		*out = sizer;
	return rc;
}

void rh_stage_plan_sizer_destroy(struct rh_stage_plan_sizer *sizer)
{
	if (!sizer)
		return;
	plan_close(&sizer->planner);
	rh_free(sizer);
}

int64_t rh_stage_plan_sizer_bytes(struct rh_stage_plan_sizer *sizer, struct rh_stages forward, struct rh_stages backward)
{
	struct rh_stage_plan plan = {
	        .forward = forward.stage, .backward = backward.stage, .forward_stages = forward.count, .backward_stages = backward.count};
	plan_size(&sizer->planner, &plan);
	return plan.device_bytes;
}

int64_t rh_stage_plan_sizer_stage_bytes(struct rh_stage_plan_sizer *sizer, struct rh_stage stage, int64_t deferred)
{
	return plan_stage_device_bytes(&sizer->planner, stage, deferred);
}
