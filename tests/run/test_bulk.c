/* What the executor really asks of its devices: weights and gradients in pieces, in the windows that the activations of the slot beside
 * them leave, no window with much more than its share. */
#include "offload/transfer.h"
#include "run/executor.h"
#include "train/rig.h"

#include <stdlib.h>

enum { PIECE = 512, MICROS = 6, CALLS = 1 << 16, DEVICES = 2, EVENTS = 4096 };

/* In the order in which they were enqueued. */
static struct recorder {
	const struct rh_device_ops *real;
	struct rh_device_ops ops;
	struct call {
		enum { RECORD, WAIT, COPY } kind;
		int device;
		enum rh_stream stream;
		enum rh_stream marked; /* WAIT: the stream that the event was last recorded on */
		int64_t bytes;         /* COPY */
	} call[CALLS];
	int calls;
	struct {
		struct rh_event *event;
		enum rh_stream stream;
	} mark[EVENTS];
	int marks;
} rec;

#define AS_ITSELF(device, what)                                                                                                            \
	({                                                                                                                                 \
		(device)->ops = rec.real;                                                                                                  \
		int as_itself_rc = rec.real->what;                                                                                         \
		(device)->ops = &rec.ops;                                                                                                  \
		as_itself_rc;                                                                                                              \
	})

static void note(struct call call)
{
	assert_true(rec.calls < CALLS);
	rec.call[rec.calls++] = call;
}

static int mark_of(struct rh_event *event)
{
	int i = 0;
	while (i < rec.marks && rec.mark[i].event != event)
		i++;
	assert_true(i < EVENTS);
	return i;
}

static int recorded_record(struct rh_device *device, enum rh_stream stream, struct rh_event *event)
{
	int i = mark_of(event);
	rec.mark[i].event = event;
	rec.mark[i].stream = stream;
	rec.marks += i == rec.marks;
	note((struct call){.kind = RECORD, .device = device->index, .stream = stream});
	return AS_ITSELF(device, record(device, stream, event));
}

static int recorded_wait(struct rh_device *device, enum rh_stream stream, struct rh_event *event)
{
	int i = mark_of(event);
	enum rh_stream marked = i < rec.marks ? rec.mark[i].stream : RH_STREAMS;
	note((struct call){.kind = WAIT, .device = device->index, .stream = stream, .marked = marked});
	return AS_ITSELF(device, wait(device, stream, event));
}

static int recorded_up(struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	note((struct call){.kind = COPY, .device = device->index, .stream = stream, .bytes = bytes});
	return AS_ITSELF(device, copy_up(device, stream, to, from, bytes));
}

static int recorded_down(struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	note((struct call){.kind = COPY, .device = device->index, .stream = stream, .bytes = bytes});
	return AS_ITSELF(device, copy_down(device, stream, to, from, bytes));
}

static void listen(struct rig *rig)
{
	struct rh_devices *devices = &rig->session.devices;
	memset(&rec, 0, sizeof rec);
	rec.real = devices->device[0]->ops;
	rec.ops = *rec.real;
	rec.ops.record = recorded_record;
	rec.ops.wait = recorded_wait;
	rec.ops.copy_up = recorded_up;
	rec.ops.copy_down = recorded_down;
	for (int d = 0; d < devices->count; d++)
		devices->device[d]->ops = &rec.ops;
}

struct found {
	int runs, gates; /* of copies between two records; of them, those behind an activation */
	int64_t bytes, gated_bytes;
};

/* A bulk stream's copies between two of its records: all in pieces; where they wait for activations on `critical`, no window carries more
 * than a share and a piece. */
static struct found check_stream(int device, enum rh_stream bulk, enum rh_stream critical)
{
	struct found found = {0};
	int64_t load = 0, most = 0, all = 0;
	int gates = 0;
	for (int i = 0; i <= rec.calls; i++) {
		const struct call *call = i < rec.calls ? &rec.call[i] : NULL;
		if (call && (call->device != device || call->stream != bulk))
			continue;
		if (call && call->kind == COPY) {
			assert_true(call->bytes <= PIECE);
			load += call->bytes;
			most = load > most ? load : most;
			all += call->bytes;
			found.bytes += call->bytes;
			found.gated_bytes += gates ? call->bytes : 0;
		} else if (call && call->kind == WAIT && call->marked == critical) {
			load = 0;
			gates++;
		} else if (all && bulk == RH_STREAM_WEIGHTS && (!call || call->kind == RECORD)) {
			if (gates)
				assert_true(most <= all / MICROS + PIECE);
			found.runs++;
			found.gates += gates;
			load = most = all = 0;
			gates = 0;
		}
	}
	return found;
}

static void test_bulk_goes_in_pieces_between_activations(void **state)
{
	(void)state;
	for (int devices = 1; devices <= DEVICES; devices++) {
		struct rig rig;
		int64_t cuts[] = {1, 2, 3};
		rig_open(&rig, "qwen3", NULL);
		rig.config.dtype = RH_BF16;
		rig.config.device = (char *)(uintptr_t)(devices == 1 ? "cpu:1" : "cpu:2");
		rig.config.backward_cuts = cuts;
		rig.config.backward_cut_count = 3;
		rig.config.forward_cuts = cuts;
		rig.config.forward_cut_count = 2;
		struct rig_input in = rig_input(&rig, "train");
		struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MICROS};
		assert_true(in.micros >= MICROS);
		rig_start(&rig, RH_SESSION_TRAINS, &work);
		rh_record_begin(rig.session.executor); /* while recording no command counts as ended, so that each wait is recorded */
		listen(&rig);
		(void)rig_step(&rig, &in, 0, MICROS, 0);
		rh_record_end(rig.session.executor);
		struct found up = {0}, down = {0};
		for (int d = 0; d < devices; d++) {
			struct found u = check_stream(d, RH_STREAM_WEIGHTS, RH_STREAM_ACTIVATIONS_UP);
			struct found g = check_stream(d, RH_STREAM_GRADIENTS, RH_STREAM_ACTIVATIONS_DOWN);
			up.runs += u.runs;
			up.gates += u.gates;
			up.bytes += u.bytes;
			up.gated_bytes += u.gated_bytes;
			down.bytes += g.bytes;
			down.gated_bytes += g.gated_bytes;
			rig.session.devices.device[d]->ops = rec.real;
		}
		printf("%d device%s: %d uploads of %lld bytes, %lld of them behind activations; %lld bytes down, %lld behind activations\n",
		       devices, devices == 1 ? "" : "s", up.runs, (long long)up.bytes, (long long)up.gated_bytes, (long long)down.bytes,
		       (long long)down.gated_bytes);
		/* all but the first slot of a device is sent in the windows of the one before (with two devices each has one more whose
		 * weights it does not hold yet); all gradients but those of its last slot, and the first window's of the others */
		assert_true(up.runs >= 2 * devices && up.gates >= (up.runs - devices) * 2 && up.gated_bytes * 2 > up.bytes);
		assert_true(down.bytes > 0 && down.gated_bytes * 4 > down.bytes);
		rig_close(&rig);
	}
}

int main(void)
{
	setenv("RH_PIECE_BYTES", "512", 1);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_bulk_goes_in_pieces_between_activations)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
