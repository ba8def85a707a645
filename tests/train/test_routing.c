/* The experts that routers choose are transformers' own, each token's in the same order. The test compares what ROUTER wrote on the device
 * while the executor ran the model's layers. */
#include "rig.h"

enum { DEVICES = 2, ROUTED_MOST = 8, CHOICES_MOST = 512 };

/* The devices' ops, with a launch that also copies down what a router chose. One for the process: a device's ops have no room for it. */
static struct {
	struct rh_device_ops ops;
	const struct rh_device_ops *below;
	int32_t choice[ROUTED_MOST][CHOICES_MOST];
	int64_t count[ROUTED_MOST];
	int routed;
} spy;

static int spying_launch(struct rh_device *device, enum rh_stream stream, const struct rh_op *op)
{
	int rc = spy.below->launch(device, stream, op);
	if (rc || op->kind != RH_OP_ROUTER)
		return rc;
	struct rh_view index = op->operand[RH_ROUTER_INDEX];
	int layer = spy.routed++;
	assert_true(layer < ROUTED_MOST && index.rows * index.cols <= CHOICES_MOST);
	spy.count[layer] = index.rows * index.cols;
	return spy.below->copy_down(device, stream, spy.choice[layer], index.data, index.rows * index.cols * (int64_t)sizeof(int32_t));
}

/* A device checks that events are of its own kind: it waits as itself. */
static int plain_wait(struct rh_device *device, enum rh_stream stream, struct rh_event *event)
{
	device->ops = spy.below;
	int rc = spy.below->wait(device, stream, event);
	device->ops = &spy.ops;
	return rc;
}

static void set_ops(struct rh_devices *devices, const struct rh_device_ops *ops)
{
	for (int d = 0; d < devices->count; d++)
		devices->device[d]->ops = ops;
}

/* Layers run one after the other, on whichever device: their launches come in that order. */
static void infer_spied(struct rh_session *session, const struct rh_micro_batch *batch)
{
	spy.routed = 0;
	spy.below = session->devices.device[0]->ops;
	spy.ops = *spy.below;
	spy.ops.launch = spying_launch;
	spy.ops.wait = plain_wait;
	set_ops(&session->devices, &spy.ops);
	check_ok(rh_executor_infer(session->executor, batch, 1));
	for (int d = 0; d < session->devices.count; d++) /* what was copied down has arrived */
		check_ok(spy.below->synchronize(session->devices.device[d]));
	set_ops(&session->devices, spy.below);
}

static void compare(const struct rig *rig, const char *reference)
{
	char key[64];
	snprintf(key, sizeof key, "%s.experts", reference);
	const struct rh_safetensor *expected = rig_tensor(rig, key); /* (layers, tokens, experts of each) */
	assert_int_equal(expected->rank, 3);
	assert_int_equal(spy.routed, expected->shape[0]);
	const char *bytes = tensor_bytes(rig->reference, expected);
	int64_t each = expected->shape[1] * expected->shape[2];
	for (int layer = 0; layer < spy.routed; layer++) {
		assert_int_equal(spy.count[layer], each);
		assert_memory_equal(spy.choice[layer], bytes + layer * each * (int64_t)sizeof(int32_t), (size_t)each * sizeof(int32_t));
	}
	printf("%s %s: %d layers, %lld choices\n", rig->model, reference, spy.routed, (long long)(spy.routed * each));
}

static void choices_are(const char *name, const char *adapter, const char *reference, const char *device)
{
	static struct rig_micro micro;
	struct rig rig;
	rig_open(&rig, name, adapter);
	rig.config.device = (char *)(uintptr_t)device;
	struct rig_input in = rig_input(&rig, "docs");
	struct rh_workload work = {.infer = rig_limits(&in, 1), .infer_micro_batches = 1};
	rig_start(&rig, RH_SESSION_INFERS, &work);
	rig_micro_make(&in, 0, 1, &micro);
	infer_spied(&rig.session, &micro.batch);
	compare(&rig, reference);
	rig_close(&rig);
}

static void test_the_experts_chosen_equal_hugging_faces(void **state)
{
	(void)state;
	static const char *const models[] = {"qwen3-moe", "gpt-oss", "gemma4-moe", "glm4-lite", "deepseek3"};
	static const char *const ggufs[] = {"gguf-qwen3-moe", "gguf-gpt-oss"};
	static const char *const devices[DEVICES] = {"cpu:1", "cpu:2"};
	for (int i = 0; i < 5 * DEVICES; i++) {
		choices_are(models[i / 2], NULL, "docs", devices[i % 2]);
		choices_are(models[i / 2], "adapter", "adapter", devices[i % 2]);
		choices_are(models[i / 2], "adapter-rs", "adapter-rs", devices[i % 2]);
		if (i / 2 >= 2)
			continue;
		choices_are(ggufs[i / 2], NULL, "docs", devices[i % 2]);
		choices_are(ggufs[i / 2], "adapter", "adapter", devices[i % 2]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_experts_chosen_equal_hugging_faces)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
