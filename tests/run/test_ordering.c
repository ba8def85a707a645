/* The five orderings in real steps: what the executor asks of its devices and what the updater does, recorded and checked. */
#include "offload/order.h"
#include "offload/updater.h"
#include "run/executor_internal.h"
#include "train/rig.h"

#include <pthread.h>

enum { MICROS = 4, STEPS = 5, EVENTS = 1 << 20, DEVICES = 4, BLOCKS = 64, TOKENS = 4096 };
enum block_token { READY, TAKEN, ANNOUNCED, BLOCK_TOKENS };

/* Devices of a rig with a recorder between them and the executor. Lanes: each device's streams, the updater, the host. Tokens: the
 * updater's (three a block and one of all), one for each lane and the host, then events. The updater's thread asks for some, too. */
static struct recorder {
	const struct rh_device_ops *real;
	struct rh_device_ops ops;
	struct order_log *log;
	struct rh_store *store;
	const struct rh_executor *executor;
	pthread_mutex_t lock;
	struct rh_event *event[TOKENS]; /* protected by lock, as is events */
	int events, devices, blocks, staleness;
	int64_t step;                          /* that is enqueued */
	int64_t reached[DEVICES * RH_STREAMS]; /* records that the dispatcher has seen reached */
	/* Bytes of each block's gradients, in one step and so far, tell whose a download is: a step's last ones leave in the next. */
	int64_t down_each[BLOCKS], down[BLOCKS];
} rec;

/* A device sees that its events are of its own kind: the call itself is made as if nobody listened. */
#define AS_ITSELF(device, call)                                                                                                            \
	({                                                                                                                                 \
		(device)->ops = rec.real;                                                                                                  \
		int as_itself_rc = rec.real->call;                                                                                         \
		(device)->ops = &rec.ops;                                                                                                  \
		as_itself_rc;                                                                                                              \
	})

static int host(void)
{
	return rec.devices * RH_STREAMS + 1;
}

static int lane_of(const struct rh_device *device, enum rh_stream stream)
{
	return device->index * RH_STREAMS + (int)stream;
}

static int64_t lane_token(int lane)
{
	return BLOCK_TOKENS * rec.blocks + 1 + lane;
}

static int64_t event_token(struct rh_event *event)
{
	int i = 0;
	pthread_mutex_lock(&rec.lock);
	while (i < rec.events && rec.event[i] != event)
		i++;
	assert_true(i < TOKENS);
	if (i == rec.events)
		rec.event[rec.events++] = event;
	pthread_mutex_unlock(&rec.lock);
	return lane_token(host() + 1) + i;
}

static void note(enum order_kind kind, int lane, int64_t what)
{
	order_log_add(rec.log, kind, lane, what, kind < ORDER_SIGNAL ? rec.executor->dispatcher.step : 0);
}

static int64_t block_token(enum block_token what, int b)
{
	return b < 0 ? BLOCK_TOKENS * rec.blocks : BLOCK_TOKENS * b + (int64_t)what;
}

/* On the lane of the updater's thread, or of the host. */
static void signal_token(int lane, int64_t token)
{
	order_log_add(rec.log, ORDER_SIGNAL, lane, token, 0);
}

static void await_token(int lane, int64_t token)
{
	order_log_add(rec.log, ORDER_WAIT, lane, token, 0);
}

static void note_update(const struct rh_updater_moment *at)
{
	int lane = host() - 1, makes_weights = at->pass != RH_UPDATE_MOMENTS, publishes = makes_weights && !rec.staleness;
	if (at->told == RH_TOLD_UPDATES) {
		order_log_add(rec.log, ORDER_TAKE, lane, at->block, at->step);
		if (makes_weights)
			order_log_add(rec.log, ORDER_UPDATE, lane, at->block, at->step);
		if (publishes)
			order_log_add(rec.log, ORDER_PUBLISH, lane, at->block, at->step);
		return;
	}
	if (publishes)
		signal_token(lane, block_token(READY, at->block));
	if (at->pass == RH_UPDATE_WEIGHTS)
		return;
	signal_token(lane, block_token(TAKEN, at->block));
	signal_token(lane, block_token(TAKEN, -1));
}

static void note_updater(const struct rh_updater_moment *at)
{
	int lane = host() - 1;
	switch (at->told) {
	case RH_TOLD_ANNOUNCED:
		signal_token(host(), block_token(ANNOUNCED, at->block));
		return;
	case RH_TOLD_AWAITED_WEIGHTS:
		await_token(host(), block_token(READY, at->block));
		return;
	case RH_TOLD_AWAITED_GRADIENT:
		await_token(host(), block_token(TAKEN, at->block));
		return;
	case RH_TOLD_UPDATES:
	case RH_TOLD_UPDATED:
		note_update(at);
		return;
	case RH_TOLD_TAKES:
		await_token(lane, block_token(ANNOUNCED, at->block));
		break;
	case RH_TOLD_PUBLISHED:
		break;
	}
	for (int i = 0; i < at->events; i++)
		await_token(lane, event_token(at->event[i]));
	if (at->told != RH_TOLD_PUBLISHED)
		return;
	if (at->step >= 0)
		order_log_add(rec.log, ORDER_PUBLISH, lane, at->block, at->step);
	signal_token(lane, block_token(READY, at->block));
}

static void note_download(int lane, int b, int64_t bytes)
{
	int64_t each = rec.down_each[b];
	order_log_add(rec.log, ORDER_DOWNLOAD, lane, b, each ? rec.down[b] / each : rec.step);
	rec.down[b] += bytes;
}

/* The dispatcher asks events how far streams have come, and waits for nothing that is over. */
static void note_reached(void)
{
	for (int i = 0; i < rec.devices * RH_STREAMS; i++) {
		const struct dispatch_stream *stream = &rec.executor->dispatcher.stream[i];
		if (stream->marks.reached > rec.reached[i])
			note(ORDER_WAIT, host(), event_token(stream->marks.latest_reached.event));
		rec.reached[i] = stream->marks.reached;
	}
}

/* What is enqueued comes after all that the host did before. */
static void enqueue(int lane)
{
	note_reached();
	note(ORDER_SIGNAL, host(), lane_token(host()));
	note(ORDER_WAIT, lane, lane_token(host()));
}

static int recorded_record(struct rh_device *device, enum rh_stream stream, struct rh_event *event)
{
	enqueue(lane_of(device, stream));
	note(ORDER_SIGNAL, lane_of(device, stream), event_token(event));
	return AS_ITSELF(device, record(device, stream, event));
}

static int recorded_wait(struct rh_device *device, enum rh_stream stream, struct rh_event *event)
{
	enqueue(lane_of(device, stream));
	note(ORDER_WAIT, lane_of(device, stream), event_token(event));
	return AS_ITSELF(device, wait(device, stream, event));
}

static int is_in(const void *at, const void *array, int64_t bytes)
{
	return array && (const char *)at >= (const char *)array && (const char *)at < (const char *)array + bytes;
}

static int recorded_up(struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	enqueue(lane_of(device, stream));
	for (int b = 0; b < rec.blocks; b++)
		if (is_in(from, rh_store_weights(rec.store, b), rh_store_block(rec.store, b)->elements * 2))
			note(ORDER_UPLOAD, lane_of(device, stream), b);
	return AS_ITSELF(device, copy_up(device, stream, to, from, bytes));
}

static int recorded_down(struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	enqueue(lane_of(device, stream));
	for (int b = 0; b < rec.blocks; b++) {
		int64_t elements = rh_store_block(rec.store, b)->elements;
		if (is_in(to, rh_store_gradient(rec.store, b), elements * 2) || is_in(to, rh_store_sum(rec.store, b, 0), elements * 4))
			note_download(lane_of(device, stream), b, bytes);
	}
	return AS_ITSELF(device, copy_down(device, stream, to, from, bytes));
}

static int recorded_synchronize(struct rh_device *device)
{
	int rc = AS_ITSELF(device, synchronize(device));
	for (int s = 0; s < RH_STREAMS; s++) {
		int lane = lane_of(device, (enum rh_stream)s);
		note(ORDER_SIGNAL, lane, lane_token(lane));
		note(ORDER_WAIT, host(), lane_token(lane));
	}
	return rc;
}

static void listen(struct rig *rig)
{
	struct rh_devices *devices = &rig->session.devices;
	rec = (struct recorder){.real = devices->device[0]->ops,
	                        .store = rig->session.store,
	                        .executor = rig->session.executor,
	                        .devices = devices->count,
	                        .staleness = (int)rig->config.optimizer_staleness};
	pthread_mutex_init(&rec.lock, NULL);
	rec.blocks = rh_store_blocks(rec.store);
	assert_true(rec.blocks <= BLOCKS && rec.devices <= DEVICES);
	rec.ops = *rec.real;
	rec.ops.record = recorded_record;
	rec.ops.wait = recorded_wait;
	rec.ops.copy_up = recorded_up;
	rec.ops.copy_down = recorded_down;
	rec.ops.synchronize = recorded_synchronize;
	rec.log = order_log_create(EVENTS);
	for (int d = 0; d < rec.devices; d++)
		devices->device[d]->ops = &rec.ops;
	rh_updater_tell(rig->session.updater, note_updater);
}

/* The recording without a lane's waits for tokens in [from, to): what is found broken. */
static int broken_without(const struct order_event *event, int64_t count, int staleness, int lane, int64_t from, int64_t to)
{
	struct order_event *kept = malloc((size_t)count * sizeof *kept);
	struct order_fault fault;
	int64_t left = 0;
	for (int64_t i = 0; i < count; i++)
		if (event[i].kind != ORDER_WAIT || event[i].lane != lane || event[i].subject < from || event[i].subject >= to)
			kept[left++] = event[i];
	check_ok(order_check(kept, left, staleness, &fault));
	free(kept);
	return fault.ordering;
}

static struct rh_update update_of(int step)
{
	return (struct rh_update){.settings = {0.9, 0.999, 1e-8, 0, 0}, .learning_rate = 1e-3, .scale = 1, .step = step + 1};
}

/* So many at once, but for the first. */
static void steps_as_training(struct rig *rig, const struct rig_input *in, double clip, int most)
{
	static struct rig_flight flight[2];
	double norm;
	for (int step = 0, begun = 0; step < STEPS; step++) {
		for (; begun < STEPS && begun < step + (step ? most : 1); begun++) {
			struct rh_update update = update_of(begun);
			rec.step = begun;
			rh_updater_open(rig->session.updater, &update, clip);
			rig_begin(rig, in, begun * MICROS, MICROS, begun, &flight[begun % 2]);
		}
		(void)rig_finish(rig, &flight[step % 2]);
		check_ok(rh_updater_norm(rig->session.updater, &norm));
		if (!step)
			memcpy(rec.down_each, rec.down, sizeof rec.down);
	}
}

enum when { APART, JOINED };

static void test_steps_hold_all_orderings(void **state)
{
	(void)state;
	static const struct {
		const char *device;
		int64_t round;
		int staleness;
		enum when when;
		double clip;
	} cases[] = {{"cpu:1", 0, 0, APART, 1},  {"cpu:1", 0, 1, APART, 0},  {"cpu:2", 0, 1, APART, 1},  {"cpu:1", 0, 0, APART, 0},
	             {"cpu:3", 2, 0, APART, 0},  {"cpu:3", 1, 1, APART, 0},  {"cpu:2", 2, 0, APART, 1},  {"cpu:4", 2, 1, APART, 1},
	             {"cpu:4", 1, 0, APART, 0},  {"cpu:2", 2, 0, APART, 1},  {"cpu:1", 0, 1, JOINED, 1}, {"cpu:2", 2, 1, JOINED, 0},
	             {"cpu:3", 1, 1, JOINED, 1}, {"cpu:4", 2, 1, JOINED, 1}, {"cpu:4", 0, 1, JOINED, 0}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rig rig;
		int64_t cuts[] = {1, 2, 3};
		rig_open(&rig, "qwen3", NULL);
		rig.config.dtype = RH_BF16;
		rig.config.device = (char *)(uintptr_t)cases[i].device;
		rig.config.round_micro_batches = cases[i].round;
		rig.config.optimizer_staleness = cases[i].staleness;
		rig.config.max_grad_norm = cases[i].clip;
		rig.config.backward_cuts = cuts + 1;
		rig.config.backward_cut_count = 2;
		struct rig_input in = rig_input(&rig, "train");
		struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MICROS};
		rig_start(&rig, RH_SESSION_TRAINS, &work);
		listen(&rig);
		rh_updater_weights_first(rig.session.updater);
		steps_as_training(&rig, &in, cases[i].clip, cases[i].when == JOINED ? 2 : 1);
		check_ok(rh_updater_finish(rig.session.updater));
		int64_t count, forgotten, uploads = 0, downloads = 0;
		const struct order_event *event = order_log_events(rec.log, &count, &forgotten);
		assert_int_equal(forgotten, 0);
		for (int64_t k = 0; k < count; k++) {
			uploads += event[k].kind == ORDER_UPLOAD;
			downloads += event[k].kind == ORDER_DOWNLOAD;
		}
		struct order_fault fault;
		char text[256];
		check_ok(order_check(event, count, cases[i].staleness, &fault));
		order_describe(&fault, text, sizeof text);
		printf("%s, rounds of %d, staleness %d%s: %d events, %d uploads, %d downloads: %s\n", cases[i].device, (int)cases[i].round,
		       cases[i].staleness, cases[i].when == JOINED ? ", joined" : "", (int)count, (int)uploads, (int)downloads, text);
		assert_true(uploads > STEPS && downloads > STEPS);
		assert_int_equal(fault.ordering, 0);
		/* without the updater's awaits they would not, nor without the end of the devices' work, or the events of arrivals */
		int64_t awaits = BLOCK_TOKENS * rec.blocks;
		int unwaited = broken_without(event, count, cases[i].staleness, host(), 0, awaits);
		printf("without awaits: ordering %d\n", unwaited);
		assert_true(unwaited == 2 || unwaited == 4);
		int ends = broken_without(event, count, cases[i].staleness, host() - 1, lane_token(host() + 1), INT64_MAX);
		assert_true(ends == 1 || ends == 3);
		for (int d = 0; d < rec.devices; d++)
			rig.session.devices.device[d]->ops = rec.real;
		rh_updater_tell(rig.session.updater, NULL);
		order_log_destroy(rec.log);
		rig_close(&rig);
	}
}

int main(void)
{
	setenv("RH_PIECE_BYTES", "256", 1); /* these models are small: many pieces all the same */
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps_hold_all_orderings)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
