/* A model in parts, one for each of several boxes: the parts make the whole, each part's plan covers its layers, and the boxes' programs
 * hand micro-batches on in the same order at both ends, without waiting for one another in a circle. */
#include "check.h"

#include "core/alloc.h"
#include "schedule/dispatch.h"

#include <string.h>

enum { BOXES_MOST = 4, LAYERS = 13, MESSAGES_MOST = 64 };

struct box {
	struct rh_model *model;
	struct rh_stage_plan plan;
	struct rh_boxes place;
	struct rh_dispatch dispatch;
	struct rh_program program;
};

/* The parts of a small model, of about as many layers each. */
struct rig {
	struct rh_model_config config;
	struct rh_model *whole;
	struct box box[BOXES_MOST];
	int boxes;
};

static int cut(const struct rig *rig, int box)
{
	return box * LAYERS / rig->boxes;
}

static void rig_open(struct rig *rig, int boxes)
{
	*rig = (struct rig){.boxes = boxes};
	json_t *json = json_pack("{s:[s], s:i, s:i, s:i, s:i, s:i, s:i, s:b}", "architectures", "LlamaForCausalLM", "hidden_size", 64,
	                         "intermediate_size", 96, "num_hidden_layers", LAYERS - 2, "num_attention_heads", 4, "num_key_value_heads",
	                         2, "vocab_size", 100, "tie_word_embeddings", 0);
	check_ok(rh_model_config_parse(json, "test", &rig->config));
	json_decref(json);
	check_ok(rh_model_create(&rig->config, RH_F32, NULL, &rig->whole));
	for (int k = 0; k < boxes; k++) {
		check_ok(rh_model_create(&rig->config, RH_F32, NULL, &rig->box[k].model));
		rh_model_keep(rig->box[k].model, cut(rig, k), cut(rig, k + 1));
	}
}

static void rig_close(struct rig *rig)
{
	for (int k = 0; k < rig->boxes; k++) {
		rh_model_destroy(rig->box[k].model);
		rh_stage_plan_free(&rig->box[k].plan);
		rh_program_free(&rig->box[k].program);
	}
	rh_model_destroy(rig->whole);
	rh_model_config_free(&rig->config);
}

/* `cap`: of a device; 0: no limit. */
static void plan_box(struct box *box, int devices, int64_t cap)
{
	const struct rh_stage_plan_request request = {.model = box->model,
	                                              .trains = 1,
	                                              .train = {.tokens = 48, .documents = 3, .longest = 30, .head_rows = 20},
	                                              .devices = devices,
	                                              .train_round = 1,
	                                              .crosses_rounds = 1,
	                                              .device_cap_bytes = cap ? cap : INT64_C(1) << 40,
	                                              .forward_cut_count = -1,
	                                              .backward_cut_count = -1};
	rh_stage_plan_free(&box->plan);
	check_ok(rh_stage_plan_make(&request, &box->plan));
}

static void test_parts_make_the_whole(void **state)
{
	(void)state;
	struct rig rig;
	rig_open(&rig, 3);
	int next = 0;
	for (int k = 0; k < rig.boxes; k++) {
		const struct rh_model *part = rig.box[k].model;
		assert_int_equal(part->first_layer, cut(&rig, k));
		assert_int_equal(rh_model_has_embedding(part), k == 0);
		assert_int_equal(rh_model_has_head(part), k == rig.boxes - 1);
		for (int b = 0; b < part->blocks; b++, next++) {
			const struct rh_block *block = &part->block[b], *same = &rig.whole->block[next];
			assert_int_equal(block->number, next);
			assert_string_equal(block->name, same->name);
			for (int t = 0; t < block->tensors; t++) {
				float here[3], there[3];
				assert_string_equal(block->tensor[t].name, same->tensor[t].name);
				rh_model_initial(part, 7, b, t, 5, 3, here);
				rh_model_initial(rig.whole, 7, next, t, 5, 3, there);
				assert_memory_equal(here, there, sizeof here);
			}
		}
		for (int l = 0; l < part->layers; l++)
			assert_int_equal(part->layer[l].kind, rig.whole->layer[cut(&rig, k) + l].kind);
	}
	assert_int_equal(next, rig.whole->blocks);
	rig_close(&rig);
}

static void check_covers(const struct box *box)
{
	const struct rh_stage_plan *plan = &box->plan;
	int layers = box->model->layers, lo = 0, hi = layers;
	for (int s = 0; s < plan->forward_stages; lo = plan->forward[s++].hi)
		assert_int_equal(plan->forward[s].lo, lo);
	for (int s = 0; s < plan->backward_stages; hi = plan->backward[s++].lo)
		assert_int_equal(plan->backward[s].hi, hi);
	assert_int_equal(hi, 0); /* all layers are trained */
	assert_int_equal(lo, rh_model_has_head(box->model) ? plan->backward[0].lo : layers);
	for (int s = 0; s < plan->backward_stages; s++)
		assert_int_equal(plan->places[s].kept.bytes, 0);
}

static void test_plans_cover_their_parts(void **state)
{
	(void)state;
	struct rig rig;
	rig_open(&rig, 3);
	for (int k = 0; k < rig.boxes; k++)
		for (int devices = 1; devices < 3; devices++) {
			plan_box(&rig.box[k], devices, 0);
			check_covers(&rig.box[k]);
			int64_t all = rig.box[k].plan.device_bytes;
			int stages = rig.box[k].plan.backward_stages;
			plan_box(&rig.box[k], devices, all * 2 / 3);
			check_covers(&rig.box[k]);
			assert_true(rig.box[k].plan.backward_stages > stages);
			assert_true(rig.box[k].plan.device_bytes <= all * 2 / 3);
		}
	rig_close(&rig);
}

/* What a box has done: the micro-batches whose activations went to the box above, and gradients to the one below, in their order. */
struct passed {
	int64_t micro_batch[2][MESSAGES_MOST];
	int sent[2], received[2];
};

/* The next slot, if all that it receives has been sent; 0: it waits. */
static int run_slot(const struct rig *rig, struct passed *passed, int k, size_t *next)
{
	const struct box *box = &rig->box[k];
	const struct rh_slot *slot = &box->program.slot[*next];
	int layers = box->model->layers, forward = slot->kind == RH_SLOT_FORWARD || slot->kind == RH_SLOT_FUSED;
	int in = k && slot->lo == 0 && (forward || (slot->kind == RH_SLOT_INPUT_GRADIENT && slot->hi == layers && k + 1 == rig->boxes));
	int back = k + 1 < rig->boxes && slot->hi == layers && slot->kind != RH_SLOT_FORWARD && slot->kind != RH_SLOT_WEIGHT_GRADIENT;
	struct passed *below = k ? &passed[k - 1] : NULL, *above = &passed[k + 1];
	for (int64_t m = slot->first; m < slot->first + slot->count; m++) {
		if (in && below->received[0] + (m - slot->first) >= below->sent[0])
			return 0;
		if (back && above->received[1] + (m - slot->first) >= above->sent[1])
			return 0;
	}
	for (int64_t m = slot->first; m < slot->first + slot->count; m++) {
		if (in)
			assert_int_equal(below->micro_batch[0][below->received[0]++], m);
		if (back)
			assert_int_equal(above->micro_batch[1][above->received[1]++], m);
		if (slot->kind == RH_SLOT_FORWARD && slot->hi == layers && k + 1 < rig->boxes)
			passed[k].micro_batch[0][passed[k].sent[0]++] = m;
		if (slot->kind != RH_SLOT_FORWARD && slot->kind != RH_SLOT_WEIGHT_GRADIENT && slot->lo == 0 && k)
			passed[k].micro_batch[1][passed[k].sent[1]++] = m;
	}
	++*next;
	return 1;
}

static void check_programs(struct rig *rig, const char *schedule, int64_t count, int64_t unit, int devices)
{
	struct passed passed[BOXES_MOST + 1] = {0};
	size_t next[BOXES_MOST] = {0}, left = 0;
	for (int k = 0; k < rig->boxes; k++) {
		struct box *box = &rig->box[k];
		int turn = 0;
		box->place = (struct rh_boxes){rig->boxes, k, unit};
		box->dispatch = (struct rh_dispatch){.model = box->model,
		                                     .plan = &box->plan,
		                                     .schedule = rh_schedule_find(schedule),
		                                     .devices = devices,
		                                     .train_micro_batches = count,
		                                     .boxes = &box->place};
		check_ok(rh_dispatch_call(&box->dispatch, 1, count, &turn, &box->program));
		left += box->program.slots;
	}
	for (int moved = 1; left && moved;) {
		moved = 0;
		for (int k = 0; k < rig->boxes; k++)
			while (next[k] < rig->box[k].program.slots && run_slot(rig, passed, k, &next[k])) {
				moved = 1;
				left--;
			}
	}
	assert_int_equal(left, 0);
	for (int k = 0; k < rig->boxes; k++)
		for (int way = 0; way < 2; way++) {
			int sends = way ? k > 0 : k + 1 < rig->boxes;
			assert_int_equal(passed[k].sent[way], sends ? count : 0);
			assert_int_equal(passed[k].received[way], sends ? count : 0);
		}
}

static void test_boxes_agree_on_the_order(void **state)
{
	(void)state;
	static const char *const schedule[] = {"gpipe", "1f1b", "looped-bfs", "zb-h1", "zb-2p"};
	for (int boxes = 2; boxes <= BOXES_MOST; boxes++) {
		struct rig rig;
		rig_open(&rig, boxes);
		for (int devices = 1; devices <= 2; devices++) {
			for (int k = 0; k < boxes; k++)
				plan_box(&rig.box[k], devices, 0);
			for (size_t s = 0; s < sizeof schedule / sizeof *schedule; s++)
				for (int64_t count = 8; count <= 11; count++)
					for (int64_t unit = 1; unit <= 2; unit++)
						check_programs(&rig, schedule[s], count, unit, devices);
		}
		rig_close(&rig);
	}
}

/* A layer's gradients are summed over micro-batches in ascending order, and sums begin and end once. */
static void check_sums(const struct rh_program *program, int layer, int64_t count)
{
	int64_t next = 0;
	for (size_t i = 0; i < program->slots; i++) {
		const struct rh_slot *slot = &program->slot[i];
		if (slot->lo > layer || slot->hi <= layer)
			continue;
		if (slot->kind == RH_SLOT_FORWARD)
			continue;
		if (slot->kind == RH_SLOT_INPUT_GRADIENT) { /* adds nothing to them */
			assert_false(slot->last_round);
			continue;
		}
		assert_int_equal(slot->first, next);
		assert_int_equal(slot->first_round, next == 0 && slot->kind != RH_SLOT_WEIGHT_GRADIENT);
		next += slot->count;
		assert_int_equal(slot->last_round, next == count);
	}
	assert_int_equal(next, count);
}

static void test_sums_ascend(void **state)
{
	(void)state;
	enum { COUNT = 7 };
	static const char *const schedule[] = {"1f1b", "zb-2p"};
	struct rig rig;
	rig_open(&rig, 3);
	for (int k = 0; k < rig.boxes; k++) {
		plan_box(&rig.box[k], 2, 0);
		plan_box(&rig.box[k], 2, rig.box[k].plan.device_bytes * 2 / 3);
	}
	for (size_t s = 0; s < sizeof schedule / sizeof *schedule; s++) {
		check_programs(&rig, schedule[s], COUNT, 2, 2);
		for (int k = 0; k < rig.boxes; k++)
			for (int l = 0; l < rig.box[k].model->layers; l++)
				check_sums(&rig.box[k].program, l, COUNT);
	}
	rig_close(&rig);
}

/* The device that ran a backward's first part keeps what its second part needs. */
static void test_both_parts_of_a_backward_run_on_one_device(void **state)
{
	(void)state;
	enum { DEVICES = 2, COUNT = 7 };
	struct rig rig;
	rig_open(&rig, 3);
	for (int k = 0; k < rig.boxes; k++) {
		plan_box(&rig.box[k], DEVICES, 0);
		plan_box(&rig.box[k], DEVICES, rig.box[k].plan.device_bytes * 2 / 3);
	}
	check_programs(&rig, "zb-2p", COUNT, 1, DEVICES);
	for (int k = 0; k < rig.boxes; k++) {
		const struct rh_program *program = &rig.box[k].program;
		int seconds = 0, on[DEVICES] = {0};
		for (size_t i = 0; i < program->slots; i++) {
			const struct rh_slot *second = &program->slot[i], *first = second;
			if (second->kind != RH_SLOT_WEIGHT_GRADIENT)
				continue;
			while (first->kind != RH_SLOT_INPUT_GRADIENT || first->stage != second->stage || first->first != second->first)
				assert_true(--first >= program->slot);
			assert_int_equal(first->device, second->device);
			on[second->device]++;
			seconds++;
		}
		assert_true(seconds >= COUNT);
		for (int d = 0; d < DEVICES && rig.box[k].plan.backward_stages >= DEVICES; d++)
			assert_true(on[d] > 0);
	}
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_parts_make_the_whole),
	        cmocka_unit_test(test_plans_cover_their_parts),
	        cmocka_unit_test(test_boxes_agree_on_the_order),
	        cmocka_unit_test(test_sums_ascend),
	        cmocka_unit_test(test_both_parts_of_a_backward_run_on_one_device),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
