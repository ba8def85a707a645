/* ZB-V: device d has stages d and 2N - 1 - d, so that the first device ends the forward and begins the backward, and an activation's stay
 * is as long on every device. By hand, for times that are about equal: the lower stage's forwards until the first comes back down, the
 * upper's in turn with them, the upper's backwards as they come, then all six parts in turn; in the end weight gradients wait, so that
 * input gradients go down without a pause. With fewer micro-batches than the warm-up takes, the same order with the others left out. */
#include "schedule/schedule_internal.h"

/* A device's order as it is written: what comes next of each kind, for the lower stage and the upper one. */
struct order {
	struct weaving *weaving;
	int stage[2];
	int64_t next[RH_SLOT_WEIGHT_GRADIENT + 1][2];
};

static void add(struct order *order, enum rh_slot_kind kind, int upper)
{
	int64_t m = order->next[kind][upper]++;
	if (m < order->weaving->micro_batches)
		weaving_add(order->weaving, kind, order->stage[upper], m, 1);
}

static void add_backward(struct order *order, int upper)
{
	add(order, RH_SLOT_INPUT_GRADIENT, upper);
	add(order, RH_SLOT_WEIGHT_GRADIENT, upper);
}

static void fill_device(struct order *order, int64_t devices, int64_t d, int64_t count)
{
	int64_t *forwards = order->next[RH_SLOT_FORWARD];
	for (int64_t i = 0; i < 2 * (devices - d) - 1; i++)
		add(order, RH_SLOT_FORWARD, 0);
	for (int64_t i = 0; i < d; i++) {
		add(order, RH_SLOT_FORWARD, 1);
		add(order, RH_SLOT_FORWARD, 0);
	}
	for (int64_t i = 0; i < devices - d; i++) {
		add(order, RH_SLOT_FORWARD, 1);
		add_backward(order, 1);
	}
	while (forwards[1] < count) {
		if (forwards[0] < count)
			add(order, RH_SLOT_FORWARD, 0);
		add_backward(order, 0);
		add(order, RH_SLOT_FORWARD, 1);
		add_backward(order, 1);
	}
	for (int64_t i = 0; i < d; i++) {
		add(order, RH_SLOT_INPUT_GRADIENT, 0);
		add(order, RH_SLOT_INPUT_GRADIENT, 1);
	}
	for (int64_t i = 0; i < devices - d; i++)
		add_backward(order, 0);
	for (int upper = 1; upper >= 0; upper--)
		while (order->next[RH_SLOT_WEIGHT_GRADIENT][upper] < count)
			add(order, RH_SLOT_WEIGHT_GRADIENT, upper);
}

static void fill(struct weaving *weaving)
{
	int devices = weaving->request->devices;
	int64_t least = 2 * devices - 1, count = weaving->micro_batches > least ? weaving->micro_batches : least;
	for (int d = 0; d < devices; d++) {
		struct order order = {.weaving = weaving, .stage = {d, 2 * devices - 1 - d}};
		fill_device(&order, devices, d, count);
		weaving_next_device(weaving);
	}
}

int schedule_zb_v(const struct rh_schedule_request *request, struct rh_program *out)
{
	return weave_steps(request, fill, out);
}
