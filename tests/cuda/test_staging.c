/* Runs on a machine that registers too little host memory, or none: the same bits as where all is registered, and one line that says so. */
#include "train/rig.h"

#include "cuda/device.h"
#include "cudaemu_control.h"
#include "offload/host_copies.h"
#include "offload/memory.h"
#include "runtime.h"

#include <stdlib.h>

enum { STEPS = 6, MICROS = 4 };

struct outcome {
	double loss[STEPS], norm[STEPS];
	float *weights;
	int64_t count, boundaries, store, pageable;
};

/* Updates behind a barrier (clip) or as gradients arrive, in rounds of `round`, where so much can be registered (0: any). */
static struct outcome run(const char *device, enum rh_dtype dtype, double clip, int64_t round, int64_t pinnable)
{
	struct runtime_machine machine = {4, 13000, 8, 9, (int64_t)24 << 30, pinnable, 0};
	struct outcome out = {0};
	struct rig rig;
	runtime_set_machine(&machine);
	rig_open(&rig, "qwen3", NULL);
	int64_t cuts[] = {1, 2};
	rig.config.dtype = dtype;
	rig.config.device = (char *)(uintptr_t)device;
	rig.config.round_micro_batches = round;
	rig.config.backward_cuts = cuts;
	rig.config.backward_cut_count = 2;
	struct rig_input in = rig_input(&rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MICROS};
	rig_start(&rig, RH_SESSION_TRAINS, &work);
	struct rh_updater *updater = rig.session.updater;
	(void)runtime_queues();
	for (int step = 0; step < STEPS; step++) {
		struct rh_update update = {.settings = {0.9, 0.999, 1e-8, 0, 0}, .learning_rate = 3e-3, .scale = 1, .step = step + 1};
		rh_updater_open(updater, &update, clip);
		out.loss[step] = rig_step(&rig, &in, step * MICROS % (in.micros - MICROS + 1), MICROS, step);
		check_ok(rh_updater_norm(updater, &out.norm[step]));
	}
	check_ok(rh_updater_finish(updater));
	out.pageable = runtime_queues().pageable;
	out.weights = rig_weights(&rig.session, &out.count);
	out.boundaries = rig.session.plan.bytes.boundaries;
	out.store = rig.session.plan.bytes.store;
	rig_close(&rig);
	assert_int_equal(runtime_held(), 0);
	runtime_set_machine(NULL);
	return out;
}

static void test_too_little_registered_memory_changes_no_bit(void **state)
{
	(void)state;
	static const struct {
		const char *device;
		enum rh_dtype dtype;
		double clip;
		int64_t round;
	} cases[] = {{"emu:1", RH_F32, 1, 0}, {"emu:2", RH_BF16, 0, 0}, {"emu:2", RH_F32, 0, 2}};
	size_t count = sizeof cases / sizeof *cases;
#ifdef __SANITIZE_ADDRESS__ /* each takes a minute there */
	count = getenv("RH_LONG") ? count : 1;
#endif
	for (size_t i = 0; i < count; i++) {
		struct outcome all = run(cases[i].device, cases[i].dtype, cases[i].clip, cases[i].round, 0);
		/* nothing; the ring and what is on the critical path; and a part of the store */
		const int64_t pinnable[] = {1, all.boundaries, all.boundaries + all.store / 4, all.boundaries + all.store / 2};
		for (int p = 0; p < 4; p++) {
			struct outcome some = run(cases[i].device, cases[i].dtype, cases[i].clip, cases[i].round, pinnable[p]);
			printf("%s: %lld of %lld bytes can be registered: %lld copies kept the host\n", cases[i].device,
			       (long long)pinnable[p], (long long)(all.boundaries + all.store), (long long)some.pageable);
			/* what is on the critical path goes first: where it is registered nothing keeps the host */
			assert_true(p ? !some.pageable && !all.pageable : some.pageable > STEPS * MICROS);
			assert_int_equal(some.count, all.count);
			assert_memory_equal(some.loss, all.loss, sizeof all.loss);
			assert_memory_equal(some.norm, all.norm, sizeof all.norm);
			assert_memory_equal(some.weights, all.weights, (size_t)all.count * sizeof(float));
			free(some.weights);
		}
		free(all.weights);
	}
	cudaemu_release();
}

enum { STORE = 96 << 12 };

/* Copies of a store of STORE bytes, beside boundaries, where so much can be registered. */
struct copies_case {
	struct rh_device *device;
	struct rh_host_copies_options options;
	struct rh_host_copies copies;
	char *base;
};

static void copies_open(struct copies_case *on, int64_t boundaries, int64_t pinnable)
{
	struct runtime_machine machine = {1, 13000, 8, 9, (int64_t)24 << 30, pinnable, 0};
	struct rh_cuda_options options = {.cap_bytes = STORE};
	void *base;
	*on = (struct copies_case){.options = {.device = &on->device, .devices = 1, .has_staging = 1, .piece_bytes = 2048}};
	runtime_set_machine(&machine);
	check_ok(rh_cuda_open(0, &options, &on->device));
	check_ok(on->device->ops->reserve(on->device, STORE, &base));
	check_ok(rh_host_reserve(STORE, "a store", &on->options.area[RH_HOST_STORE]));
	check_ok(rh_host_reserve(boundaries, "boundaries", &on->options.area[RH_HOST_BOUNDARIES]));
	on->base = base;
	on->options.scratch = (struct rh_arena){.base = on->base, .capacity = STORE};
	check_ok(rh_host_copies_create(&on->options, &on->copies));
}

static void copies_close(struct copies_case *on)
{
	rh_host_copies_destroy(&on->copies);
	for (int i = 0; i < RH_HOST_AREAS; i++)
		rh_host_release(&on->options.area[i]);
	on->device->ops->close(on->device);
	assert_int_equal(runtime_held(), 0);
	runtime_set_machine(NULL);
}

/* CUDA refuses a copy that leaves a registration: of memory that is registered in pieces, in part, one is cut at each border. */
static void test_a_copy_is_cut_where_a_registration_ends(void **state)
{
	(void)state;
	enum { FROM = 1000, BYTES = 300000 };
	struct copies_case on;
	uint64_t seed = check_seed();
	static char sent[BYTES];
	copies_open(&on, 0, 200000);
	struct rh_device *device = on.device;
	const struct rh_host_pin *pin = &on.copies.pin[RH_HOST_STORE];
	char *store = on.options.area[RH_HOST_STORE].base;
	assert_true(on.copies.staging && pin->pinned_bytes >= 2 * pin->piece_bytes && pin->pinned_bytes < FROM + BYTES);
	for (int i = 0; i < BYTES; i++)
		sent[i] = store[FROM + i] = (char)check_random(&seed);
	check_ok(rh_host_copy_up(&on.copies, device, RH_STREAM_ACTIVATIONS_UP, on.base, store + FROM, BYTES));
	check_ok(device->ops->synchronize(device));
	memset(store, 0, STORE);
	check_ok(rh_host_copy_down(&on.copies, device, RH_STREAM_ACTIVATIONS_UP, store + FROM, on.base, BYTES));
	check_ok(device->ops->synchronize(device));
	check_ok(rh_host_copies_finish(&on.copies));
	assert_memory_equal(store + FROM, sent, BYTES);
	copies_close(&on);
}

/* Boundaries come first; where they alone are more than can be registered, as under WSL2, the ring has its place before them. */
static void test_boundaries_leave_room_for_the_ring(void **state)
{
	(void)state;
	struct copies_case on;
	const int64_t ring = rh_host_round(rh_staging_bytes(2048)), boundaries = 96 << 10;
	for (int64_t pinnable = ring - 1; pinnable <= 3 * ring; pinnable += ring / 2) {
		copies_open(&on, boundaries, pinnable);
		assert_true((on.copies.staging != NULL) == (pinnable >= ring));
		assert_true(on.copies.pin[RH_HOST_BOUNDARIES].pinned_bytes < boundaries);
		copies_close(&on);
	}
}

int main(void)
{
	setenv("RH_PIECE_BYTES", "2048", 1);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_copy_is_cut_where_a_registration_ends),
	                                   cmocka_unit_test(test_boundaries_leave_room_for_the_ring),
	                                   cmocka_unit_test(test_too_little_registered_memory_changes_no_bit)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
