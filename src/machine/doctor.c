#include "machine/doctor.h"

#include "config/device_spec.h"
#include "core/clock.h"
#include "core/log.h"
#include "cuda/device.h"
#include "machine/cores.h"

#include <stdio.h>
#include <string.h>

enum { LAUNCHES = 256, PROBES_MOST = 16, MORE_SECONDS = 20, COMPARED = 3 };

static const int64_t mib = 1 << 20;

/* Shapes that models have, the more telling first, as a slow machine may not get to the last. Of each: hidden, intermediate, heads, kv
 * heads, head size, vocabulary, layers, tokens, documents, rows of the head. */
#define SHAPE(h, i, q, kv, d, v, l, t, docs, rows)                                                                                         \
	.hidden = h, .intermediate = i, .heads = q, .kv_heads = kv, .head_dim = d, .vocab = v, .layers = l, .tokens = t,                   \
	.documents = docs, .head_rows = rows
static const struct doctor_probe host_probes[] = {
        {SHAPE(576, 1536, 9, 3, 64, 8192, 2, 768, 6, 512), .dtype = RH_F32},
        {SHAPE(576, 1536, 9, 3, 64, 8192, 2, 768, 6, 512), .dtype = RH_BF16},
        {SHAPE(576, 1536, 9, 3, 64, 8192, 2, 1024, 2, 512), .dtype = RH_F32, .lora_r = 8},
        {SHAPE(576, 1536, 9, 3, 64, 8192, 2, 1024, 2, 512), .dtype = RH_BF16, .lora_r = 8},
        {SHAPE(576, 1536, 9, 3, 64, 8192, 1, 768, 3, 64), .dtype = RH_F32, .lora_r = 32},
        {SHAPE(576, 1536, 9, 3, 64, 8192, 1, 768, 3, 64), .dtype = RH_BF16, .lora_r = 32},
        {SHAPE(1024, 2816, 16, 8, 64, 4096, 2, 512, 1, 256), .dtype = RH_F32, .qk_norm = 1},
        {SHAPE(1024, 2816, 16, 8, 64, 4096, 2, 512, 1, 256), .dtype = RH_BF16, .qk_norm = 1},
        {SHAPE(576, 1536, 9, 3, 64, 8192, 2, 192, 1, 128), .dtype = RH_F32},
        {SHAPE(576, 1536, 9, 3, 64, 8192, 2, 192, 1, 128), .dtype = RH_BF16},
        {SHAPE(256, 768, 4, 4, 64, 4096, 2, 256, 4, 64), .dtype = RH_F32},
        {SHAPE(256, 768, 4, 4, 64, 4096, 2, 256, 4, 64), .dtype = RH_BF16},
        {SHAPE(2048, 5632, 32, 8, 64, 8192, 1, 256, 2, 32), .dtype = RH_F32},
        {SHAPE(2048, 5632, 32, 8, 64, 8192, 1, 256, 2, 32), .dtype = RH_BF16},
        {SHAPE(256, 768, 4, 2, 64, 4096, 1, 1024, 1, 64), .dtype = RH_F32},
        {SHAPE(256, 768, 4, 2, 64, 4096, 1, 1024, 1, 64), .dtype = RH_BF16},
};
static const struct doctor_probe gpu_probes[] = {
        {SHAPE(1024, 3072, 16, 8, 64, 32768, 2, 4096, 4, 1024), .dtype = RH_BF16},
        {SHAPE(2048, 6144, 16, 8, 128, 65536, 2, 2048, 1, 1024), .dtype = RH_BF16, .qk_norm = 1},
        {SHAPE(2048, 6144, 16, 8, 128, 65536, 2, 8192, 4, 4096), .dtype = RH_BF16, .qk_norm = 1},
        {SHAPE(4096, 14336, 32, 8, 128, 65536, 2, 2048, 1, 1024), .dtype = RH_BF16},
        {SHAPE(4096, 14336, 32, 8, 128, 65536, 2, 8192, 4, 4096), .dtype = RH_BF16},
        {SHAPE(4096, 14336, 32, 8, 128, 65536, 2, 8192, 1, 1024), .dtype = RH_BF16, .lora_r = 16},
        {SHAPE(5120, 17408, 40, 8, 128, 65536, 1, 8192, 1, 1024), .dtype = RH_BF16, .qk_norm = 1},
        {SHAPE(1024, 3072, 16, 8, 64, 32768, 2, 4096, 4, 1024), .dtype = RH_F32},
};
static const struct doctor_probe small_probes[] = {
        {SHAPE(64, 128, 4, 2, 16, 256, 2, 32, 2, 8), .dtype = RH_F32},
        {SHAPE(64, 128, 4, 2, 16, 256, 2, 32, 2, 8), .dtype = RH_BF16, .lora_r = 4, .qk_norm = 1},
};

/* How much is measured on what kind of device. */
struct plan {
	struct rh_device_grain grain;
	const struct doctor_probe *probe;
	int probes, whole_host; /* the device computes on all the host's cores */
	int shared;             /* then: the probe that parts of the cores are measured with */
	int rounds, runs;       /* rounds over all probes; runs of each in a row */
	double probes_seconds;  /* after which no probe is begun, but for the first round's */
	double drive_seconds;   /* each of three */
	int64_t copy_bytes, host_bytes, optimizer_elements, drive_bytes;
};
#define PROBES(table) .probe = table, .probes = sizeof table / sizeof *table

static struct plan plan_for(const char *kind)
{
	if (!strcmp(kind, "cpu"))
		return (struct plan){PROBES(host_probes),
		                     .whole_host = 1,
		                     .shared = 8,
		                     .rounds = 32,
		                     .runs = 1,
		                     .drive_seconds = 2,
		                     .copy_bytes = 128 * mib,
		                     .host_bytes = 1024 * mib,
		                     .optimizer_elements = 24 * mib,
		                     .drive_bytes = 1024 * mib};
	if (!strcmp(kind, "cuda"))
		return (struct plan){PROBES(gpu_probes),
		                     .rounds = 4,
		                     .runs = 5,
		                     .drive_seconds = 3,
		                     .copy_bytes = 1024 * mib,
		                     .host_bytes = 4096 * mib,
		                     .optimizer_elements = 64 * mib,
		                     .drive_bytes = 4096 * mib};
	return (struct plan){PROBES(small_probes), /* an emulated GPU shows that it works */
	                     .rounds = 2,
	                     .runs = 1,
	                     .drive_seconds = 0.2,
	                     .copy_bytes = 2 * mib,
	                     .host_bytes = 32 * mib,
	                     .optimizer_elements = mib,
	                     .drive_bytes = 32 * mib};
}

/* The device's time for an op that does nothing, one of many. */
static int measure_launch(struct rh_device *device, void *base, double *seconds)
{
	const struct rh_device_ops *ops = device->ops;
	struct rh_event *from = NULL, *to = NULL;
	struct rh_op op = {.kind = RH_OP_FILL};
	op.operand[RH_FILL_Y] = rh_view_of(base, RH_F32, 1, 64);
	int rc = ops->event_create(device, RH_EVENT_TIMED, &from);
	if (!rc)
		rc = ops->event_create(device, RH_EVENT_TIMED, &to);
	for (int n = 0; !rc && n < 3; n++) {
		rc = ops->record(device, RH_STREAM_COMPUTE, from);
		for (int i = 0; !rc && i < LAUNCHES; i++)
			rc = ops->launch(device, RH_STREAM_COMPUTE, &op);
		if (!rc)
			rc = ops->record(device, RH_STREAM_COMPUTE, to);
		if (!rc)
			rc = ops->event_sync(to);
		double each = rc ? 0 : (double)(ops->event_time_ns(to) - ops->event_time_ns(from)) * 1e-9 / LAUNCHES;
		*seconds = !n || each < *seconds ? each : *seconds;
	}
	int synced = ops->synchronize(device);
	if (from)
		ops->event_destroy(from);
	if (to)
		ops->event_destroy(to);
	return rc ? rc : synced;
}

/* Probes that do not fit into `room` bytes are left out. *bytes: what the largest of the others takes, and copies. */
static int choose_probes(const struct plan *plan, int64_t room, unsigned char *chosen, int64_t *bytes)
{
	*bytes = plan->copy_bytes;
	for (int i = 0; i < plan->probes; i++) {
		int64_t needed = doctor_probe_bytes(&plan->probe[i], &plan->grain);
		if (needed < 0)
			return (int)needed;
		chosen[i] = needed <= room;
		if (chosen[i] && needed > *bytes)
			*bytes = needed;
	}
	return *bytes <= room ? 0
	                      : rh_fail(-ENOMEM, "the devices have %.1f MiB each, too little to measure in; free some memory",
	                                (double)room / (double)mib);
}

/* What the probes usually took, made longer by what all of them together took more: that is no op's own, and every run's share. */
static int reduce(const struct plan *plan, const struct doctor_samples *samples, struct rh_doctor_report *out)
{
	int rc = 0;
	for (int i = 0; !rc && i < plan->probes; i++)
		rc = doctor_samples_reduce(&samples[i], &out->ops);
	double lost = out->ops.usual_s > 0 ? out->ops.taken_s / out->ops.usual_s : 1;
	for (size_t i = 0; i < out->ops.count; i++)
		out->ops.item[i].seconds *= lost;
	return rc;
}

/* Round after round, so that each shape meets the machine in all of its moods: where others share it, its speed can change by a third
 * within a second. */
static int run_probes(const struct plan *plan, const unsigned char *chosen, const struct doctor_place *place, struct rh_doctor_report *out)
{
	struct doctor_samples samples[PROBES_MOST] = {{0}};
	struct doctor_cores cores = {0};
	double began = rh_clock_seconds();
	int done = 0, compares = plan->whole_host && out->facts.cores > 1 && chosen[plan->shared];
	int rc = compares ? doctor_cores_open(&plan->probe[plan->shared], out->facts.cores, &cores) : 0;
	for (int round = 0; !rc && round < plan->rounds; round++)
		for (int i = 0; !rc && i < plan->probes; i++) {
			double over = rh_clock_seconds() - began - plan->probes_seconds;
			if (!chosen[i] || over > (round ? 0 : MORE_SECONDS))
				continue;
			rc = doctor_probe_run(place, &plan->probe[i], plan->runs, &samples[i]);
			done++;
			for (int n = 0; !rc && i == plan->shared && compares && n < COMPARED; n++)
				rc = doctor_cores_measure(&cores, place, &samples[i]);
		}
	if (!rc && done < plan->probes)
		rh_warn_once("this machine is slow or busy, or has little memory: some shapes of products were not measured");
	if (!rc)
		rc = reduce(plan, samples, out);
	if (!rc && compares)
		doctor_cores_reduce(&cores, &out->one_core, &out->halves);
	for (int i = 0; i < plan->probes; i++)
		doctor_samples_free(&samples[i]);
	doctor_cores_close(&cores);
	return rc;
}

static int measure_on_devices(const struct plan *plan, const unsigned char *chosen, const struct rh_devices *devices, int64_t bytes,
                              struct rh_doctor_report *out)
{
	void *base[RH_DEVICES_MAX];
	int rc = 0;
	for (int i = 0; !rc && i < devices->count; i++) /* one that computes has the largest probe, the others copy */
		rc = devices->device[i]->ops->reserve(devices->device[i], i ? plan->copy_bytes : bytes, &base[i]);
	if (!rc)
		rc = doctor_measure_copies(devices, base, plan->copy_bytes, &out->measured.copies);
	if (!rc)
		rc = measure_launch(devices->device[0], base[0], &out->launch_s);
	if (!rc)
		rc = run_probes(plan, chosen, &(struct doctor_place){devices->device[0], !plan->whole_host, plan->grain, base[0], bytes},
		                out);
	return rc;
}

static int examine_devices(const char *spec, const struct plan *plan, struct rh_doctor_report *out)
{
	unsigned char chosen[PROBES_MOST];
	struct rh_devices devices;
	struct rh_device_memory memory;
	int64_t room, bytes;
	RH_ASSERT(plan->probes <= PROBES_MOST);
	int rc = rh_devices_room(spec, &room);
	if (!rc)
		rc = choose_probes(plan, room ? room : rh_machine_free_ram() / 2 / out->devices, chosen, &bytes);
	if (!rc)
		rc = rh_devices_open(spec, out->devices, bytes, &devices);
	if (rc)
		return rc;
	if (room) {
		devices.device[0]->ops->memory(devices.device[0], &memory);
		out->device_bytes = memory.total_bytes;
		out->device_reserved_bytes = memory.total_bytes > room ? memory.total_bytes - room : 0;
	}
	rc = measure_on_devices(plan, chosen, &devices, bytes, out);
	rh_devices_close(&devices);
	return rc;
}

static int examine_host(const struct plan *plan, struct rh_doctor_report *out)
{
	struct rh_pool *pool;
	int64_t most = rh_machine_free_ram() / 4;
	int64_t bytes = plan->host_bytes < most ? plan->host_bytes : most;
	int64_t elements = plan->optimizer_elements < most / 32 ? plan->optimizer_elements : most / 32;
	int rc = rh_pool_create(rh_machine_cores(), &pool);
	if (rc)
		return rc;
	rc = doctor_measure_host(pool, bytes, &out->host);
	for (int layout = 0; !rc && layout < RH_LAYOUTS; layout++)
		rc = doctor_measure_optimizer(pool, elements, RH_BF16, (enum rh_state_layout)layout, &out->optimizer[layout]);
	if (!rc)
		rc = doctor_measure_optimizer(pool, elements, RH_F32, RH_LAYOUT_PLAIN, &out->optimizer_f32);
	rh_pool_destroy(pool);
	return rc;
}

int rh_doctor_examine(const struct rh_doctor_options *options, struct rh_doctor_report *out)
{
	struct rh_device_spec spec;
	double began = rh_clock_seconds();
	*out = (struct rh_doctor_report){.measured.build = rh_cuda_kind()};
	rh_doctor_look("", &out->facts);
	int rc = rh_device_spec_parse(options->device, &spec);
	if (rc)
		return rc;
	/* the cores are measured as one device: whoever plans with more shares them out */
	const char *device = spec.kind == RH_DEVICE_CPU ? "cpu:1" : options->device;
	out->devices = rh_devices_count(device);
	if (out->devices < 0)
		return out->devices;
	out->measured.kind = spec.kind == RH_DEVICE_CPU ? "cpu" : rh_cuda_kind();
	if (spec.kind != RH_DEVICE_CPU) {
		rc = rh_cuda_describe(spec.count ? spec.gpu[0] : 0, &out->gpu);
		if (rc)
			return rc;
		out->measured.address = out->gpu.address;
		out->measured.has_time_limit = out->gpu.has_time_limit;
	}
	struct plan plan = plan_for(out->measured.kind);
	plan.probes_seconds = options->probes_seconds;
	rc = rh_devices_grain(device, &plan.grain);
	if (rc)
		return rc;
	rh_note("measuring %d device%s (%s)", out->devices, out->devices == 1 ? "" : "s", device);
	rc = examine_devices(device, &plan, out);
	if (!rc) {
		rh_note("measuring host memory and the optimizer");
		rc = examine_host(&plan, out);
	}
	if (!rc) {
		rh_note("measuring the drive under %s%s", options->dir[0], options->dirs > 1 ? " and others" : "");
		if (doctor_measure_drive(options->dir, options->dirs, plan.drive_bytes, plan.drive_seconds, &out->measured.drive)) {
			snprintf(out->drive_trouble, sizeof out->drive_trouble, "%s", rh_error(-EIO));
			out->measured.drive = (struct doctor_drive_rates){0};
			rh_error_clear();
		}
		rh_doctor_advise(&out->facts, &out->measured, &out->advices);
	} else {
		rh_doctor_free(out);
	}
	out->seconds = rh_clock_seconds() - began;
	return rc;
}

void rh_doctor_free(struct rh_doctor_report *report)
{
	doctor_op_times_free(&report->ops);
}
