/* What lies on a device stays there: a device of one stage is sent its weights once for all slots, and a backward that lies within its
 * forward finds them where the forward read them. Only what an update changed is sent again. */
#include "train/deep.h"

enum { MICROS = 4 };

static struct {
	const struct rh_device_ops *real;
	struct rh_device_ops ops;
	int64_t bytes; /* sent on the stream of weights */
} sent;

static int counted_up(struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	sent.bytes += stream == RH_STREAM_WEIGHTS ? bytes : 0;
	return sent.real->copy_up(device, stream, to, from, bytes);
}

/* A device sees that its events are of its own kind: such calls are made as if nobody counted. */
static int plain_record(struct rh_device *device, enum rh_stream stream, struct rh_event *event)
{
	device->ops = sent.real;
	int rc = sent.real->record(device, stream, event);
	device->ops = &sent.ops;
	return rc;
}

static int plain_wait(struct rh_device *device, enum rh_stream stream, struct rh_event *event)
{
	device->ops = sent.real;
	int rc = sent.real->wait(device, stream, event);
	device->ops = &sent.ops;
	return rc;
}

static void count_copies(struct rig *rig)
{
	sent.real = rig->session.devices.device[0]->ops;
	sent.ops = *sent.real;
	sent.ops.copy_up = counted_up;
	sent.ops.record = plain_record;
	sent.ops.wait = plain_wait;
}

/* Bytes sent by a step. */
static int64_t step(struct rig *rig, const struct rig_input *in, int64_t number)
{
	sent.bytes = 0;
	(void)rig_step(rig, in, 0, MICROS, number);
	return sent.bytes;
}

/* Two steps, an update and two more: the model is sent once, and what was trained twice. */
static void check_sent(struct rig *rig, const char *what)
{
	struct rig_input in = rig_input(rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MICROS};
	rig_start(rig, RH_SESSION_TRAINS, &work);
	const struct rh_model *model = rig->session.model;
	int devices = rig->session.devices.count;
	count_copies(rig);
	for (int d = 0; d < devices; d++)
		rig->session.devices.device[d]->ops = &sent.ops;
	int64_t all = 0, trained = 0;
	for (int b = 0; b < model->blocks; b++) {
		all += model->block[b].elements * 4;
		trained += model->block[b].trainable ? model->block[b].elements * 4 : 0;
	}
	int64_t first = step(rig, &in, 0), again = step(rig, &in, 1);
	(void)rig_update(rig, 1e-3, 0);
	int64_t updated = step(rig, &in, 2), last = step(rig, &in, 3);
	printf("%s: model %lld bytes, %lld trained; sent %lld, %lld, after an update %lld, %lld\n", what, (long long)all,
	       (long long)trained, (long long)first, (long long)again, (long long)updated, (long long)last);
	assert_int_equal(first, all);
	assert_int_equal(again, 0);
	assert_int_equal(updated, trained);
	assert_int_equal(last, 0);
	for (int d = 0; d < devices; d++)
		rig->session.devices.device[d]->ops = sent.real;
}

static void test_a_device_of_one_stage_is_sent_its_weights_once(void **state)
{
	(void)state;
	for (int s = 0; s < rh_schedule_count; s++) {
		struct deep deep;
		if (rh_schedules[s].stages_most != 1 || rh_schedules[s].update != RH_UPDATE_FLUSHES)
			continue;
		deep_open(&deep, "qwen3", 6);
		deep.rig.config.device = (char *)(uintptr_t) "cpu:4";
		deep.rig.config.schedule = (char *)(uintptr_t)rh_schedules[s].name;
		check_sent(&deep.rig, rh_schedules[s].name);
		deep_close(&deep);
	}
}

/* Layers 0 to 5 forward, 6 and 7 at once, 1 to 5 backward: the embedding, which is not trained, has no backward. */
static void test_a_backward_within_its_forward_is_sent_nothing(void **state)
{
	(void)state;
	static const int64_t backward[] = {1, 6};
	static char *targets[] = {"all-linear"};
	struct deep deep;
	deep_open(&deep, "qwen3", 6);
	struct rh_config *config = &deep.rig.config;
	config->use_lora = 1;
	config->lora_r = 4;
	config->lora_alpha = 8;
	config->lora_target_modules = (struct rh_list){.item = targets, .count = 1};
	config->forward_cut_count = 0;
	config->backward_cuts = (int64_t *)(uintptr_t)backward;
	config->backward_cut_count = 2;
	check_sent(&deep.rig, "LoRA");
	config->lora_target_modules = (struct rh_list){0};
	deep_close(&deep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_device_of_one_stage_is_sent_its_weights_once),
	        cmocka_unit_test(test_a_backward_within_its_forward_is_sent_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
