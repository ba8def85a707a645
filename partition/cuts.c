#include "partition/cuts.h"

#include "core/alloc.h"

int rh_cuts_make(const struct rh_stage *forward, int forward_stages, const struct rh_stage *backward, int backward_stages,
                 struct rh_cuts *out)
{
	int64_t *cut = rh_alloc((size_t)(forward_stages + backward_stages) + 1, sizeof *cut);
	*out = (struct rh_cuts){.forward = cut};
	if (!cut)
		return -ENOMEM;
	for (int i = 1; i < forward_stages; i++)
		cut[out->forward_count++] = forward[i].lo;
	out->backward = cut + out->forward_count;
	/* the fused stage ends where the forward stages do: without another backward stage it is a cut too */
	int cuts = backward_stages > 1 ? backward_stages - 1 : forward_stages > 0;
	for (int i = cuts - 1; i >= 0; i--)
		out->backward[out->backward_count++] = backward[i].lo;
	return 0;
}

void rh_cuts_free(struct rh_cuts *cuts)
{
	rh_free(cuts->forward);
	*cuts = (struct rh_cuts){0};
}
