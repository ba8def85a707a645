#include "machine/cores.h"

#include "core/thread.h"

#include "device/cpu/cpu.h"
#include "machine/median.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { ONE, HALF, OTHER_HALF };

int doctor_cores_open(const struct doctor_probe *probe, int cores, struct doctor_cores *out)
{
	struct rh_device_grain grain = rh_cpu_grain();
	int64_t bytes = doctor_probe_bytes(probe, &grain);
	int rc = bytes < 0 ? (int)bytes : 0;
	*out = (struct doctor_cores){.probe = probe};
	for (int i = 0; !rc && i < DOCTOR_CORES_PARTS; i++) {
		struct doctor_place *part = &out->part[i];
		struct rh_cpu_options options = {.threads = i == ONE ? 1 : cores / 2, .cap_bytes = bytes, .isa = rh_cpu_best_isa()};
		*part = (struct doctor_place){.grain = grain, .bytes = bytes};
		rc = rh_cpu_open(i, &options, &part->device);
		if (!rc)
			rc = part->device->ops->reserve(part->device, bytes, &part->base);
	}
	return rc;
}

void doctor_cores_close(struct doctor_cores *cores)
{
	for (int i = 0; i < DOCTOR_CORES_PARTS; i++) {
		doctor_samples_free(&cores->samples[i]);
		if (cores->part[i].device)
			cores->part[i].device->ops->close(cores->part[i].device);
		cores->part[i].device = NULL;
	}
}

/* A pass that runs beside another. */
struct beside {
	struct doctor_cores *cores;
	int part, rc;
	char line[256]; /* what went wrong */
};

static void *run_beside(void *argument)
{
	struct beside *beside = argument;
	struct doctor_cores *cores = beside->cores;
	beside->rc = doctor_probe_run(&cores->part[beside->part], cores->probe, 1, &cores->samples[beside->part]);
	if (beside->rc)
		snprintf(beside->line, sizeof beside->line, "%s", rh_error(beside->rc));
	return NULL;
}

static int run_halves(struct doctor_cores *cores)
{
	struct beside first = {.cores = cores, .part = HALF}, second = {.cores = cores, .part = OTHER_HALF};
	pthread_t thread;
	int fault = -rh_thread_start(&thread, run_beside, &first);
	if (fault)
		return rh_fail(-fault, "cannot start a thread to measure half of the cores with: %s", strerror(fault));
	run_beside(&second);
	pthread_join(thread, NULL);
	return first.rc ? rh_fail_copy(first.rc, first.line) : second.rc ? rh_fail_copy(second.rc, second.line) : 0;
}

static double last_pass(const struct doctor_samples *samples)
{
	double sum = 0;
	for (size_t i = 0; i < samples->ops; i++)
		sum += samples->seconds[((size_t)samples->runs - 1) * samples->ops + i];
	return sum;
}

int doctor_cores_measure(struct doctor_cores *cores, const struct doctor_place *whole, struct doctor_samples *samples)
{
	if (cores->count == DOCTOR_CORES_MOST)
		return 0;
	int rc = doctor_probe_run(whole, cores->probe, 1, samples);
	if (rc)
		return rc;
	rc = doctor_probe_run(&cores->part[ONE], cores->probe, 1, &cores->samples[ONE]);
	if (rc)
		return rc;
	rc = run_halves(cores);
	if (rc)
		return rc;
	double all = last_pass(samples);
	cores->one[cores->count] = all / last_pass(&cores->samples[ONE]);
	cores->halves[cores->count++] = all / last_pass(&cores->samples[HALF]) + all / last_pass(&cores->samples[OTHER_HALF]);
	return 0;
}

void doctor_cores_reduce(struct doctor_cores *cores, double *one_core, double *halves)
{
	*one_core = cores->count ? doctor_median(cores->one, cores->count) : 0;
	*halves = cores->count ? doctor_median(cores->halves, cores->count) : 0;
	*one_core = *one_core < 1 ? *one_core : 0;
}
