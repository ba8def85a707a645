/* A device of one stage is sent its weights once for all slots, until they change. */
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

static void test_a_device_of_one_stage_is_sent_its_weights_once(void **state)
{
	(void)state;
	for (int s = 0; s < rh_schedule_count; s++) {
		if (rh_schedules[s].stages_most != 1 || rh_schedules[s].update != RH_UPDATE_FLUSHES)
			continue;
		struct deep deep;
		struct rig *rig = &deep.rig;
		deep_open(&deep, "qwen3", 6);
		rig->config.device = (char *)(uintptr_t) "cpu:4";
		rig->config.schedule = (char *)(uintptr_t)rh_schedules[s].name;
		struct rig_input in = rig_input(rig, "train");
		struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MICROS};
		rig_start(rig, RH_SESSION_TRAINS, &work);
		count_copies(rig);
		for (int d = 0; d < 4; d++)
			rig->session.devices.device[d]->ops = &sent.ops;
		int64_t model = 0;
		for (int b = 0; b < rig->session.model->blocks; b++)
			model += rig->session.model->block[b].elements * 4;
		int64_t first = step(rig, &in, 0), again = step(rig, &in, 1);
		(void)rig_update(rig, 1e-3, 0);
		int64_t updated = step(rig, &in, 2);
		printf("%s: model %lld bytes; sent %lld, %lld, after an update %lld\n", rh_schedules[s].name, (long long)model,
		       (long long)first, (long long)again, (long long)updated);
		assert_int_equal(first, model);
		assert_int_equal(again, 0);
		assert_int_equal(updated, model);
		for (int d = 0; d < 4; d++)
			rig->session.devices.device[d]->ops = sent.real;
		deep_close(&deep);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_device_of_one_stage_is_sent_its_weights_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
