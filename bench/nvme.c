/* How near is the space on NVMe to what fio reaches with the same engine, block size and depth? Reads, writes and both at once of one
 * directory, sequential over a gigabyte that was written before: ours with its checksums, by transfers as runs make them; fio's as it
 * comes. In turn, the best of each.
 *
 * usage: nvme [directory] [seconds of each measurement] */
#include "nvme.h"
#include "run/machine.h"

#include <jansson.h>
#include <string.h>

enum { ROUNDS = 2 };
static const char *const names[MODES] = {"read", "write", "rw"};

static double fio_run(const char *dir, enum mode mode, const char *engine, double seconds)
{
	char command[1024];
	snprintf(command, sizeof command,
	         "fio --name=roundhouse-bench --directory='%s' --size=%dm --rw=%s --bs=1m --iodepth=%d --ioengine=%s %s --direct=1 "
	         "--thread --time_based --runtime=%g --output-format=json 2>/dev/null",
	         dir, RECORDS * (RECORD >> 20), names[mode], DEPTH, engine, strcmp(engine, "io_uring") ? "" : "--fixedbufs --registerfiles",
	         seconds);
	FILE *fio = popen(command, "r");
	json_error_t error;
	json_t *out = fio ? json_loadf(fio, 0, &error) : NULL;
	json_t *job = json_array_get(json_object_get(out, "jobs"), 0);
	double rate = 0;
	const char *const sides[] = {"read", "write"};
	for (int s = 0; s < 2; s++)
		rate += json_number_value(json_object_get(json_object_get(job, sides[s]), "bw_bytes"));
	json_decref(out);
	if (!fio || pclose(fio) || !(rate > 0)) {
		fprintf(stderr, "nvme: fio did not run; install it (tests/deps.sh fio)\n");
		exit(1);
	}
	return rate;
}

int main(int argc, char **argv)
{
	char *dir = argc > 1 ? argv[1] : (char *)(uintptr_t) "build", machine[256], path[1024];
	double seconds = argc > 2 ? atof(argv[2]) : 3, worst = 1e9, best[MODES][2] = {{0}};
	struct ours ours;
	struct rh_space_stats stats;
	ours_open(&ours, dir);
	rh_space_stats(ours.space, &stats);
	const char *engine = strcmp(stats.engine, "io_uring") ? "psync" : "io_uring";
	printf("%s by %s%s, blocks of 1 MiB, depth %d\n", dir, stats.engine, stats.direct ? ", direct" : "", DEPTH);
	for (int r = 0; r < 2; r++) /* both files are written before anything counts */
		(void)(r ? fio_run(dir, WRITE, engine, seconds) : ours_run(&ours, WRITE, seconds));
	for (int round = 0; round < ROUNDS; round++)
		for (int m = 0; m < MODES; m++) {
			double rate = ours_run(&ours, (enum mode)m, seconds), peer = fio_run(dir, (enum mode)m, engine, seconds);
			best[m][0] = rate > best[m][0] ? rate : best[m][0];
			best[m][1] = peer > best[m][1] ? peer : best[m][1];
		}
	for (int m = 0; m < MODES; m++) {
		double ratio = best[m][0] / best[m][1];
		printf("%-5s %8.1f MB/s, fio %8.1f, ratio %.3f\n", names[m], best[m][0] * 1e-6, best[m][1] * 1e-6, ratio);
		worst = ratio < worst ? ratio : worst;
	}
	ours_close(&ours);
	snprintf(path, sizeof path, "%s/roundhouse-bench.0.0", dir);
	remove(path);
	rh_machine_describe(machine, sizeof machine);
	printf("{\"bench\": \"nvme\", \"value\": %.1f, \"unit\": \"MB/s mixed\", \"reference\": %.1f, \"ratio\": %.3f, \"worst_ratio\": "
	       "%.3f, "
	       "\"machine\": \"%s\"}\n",
	       best[MIXED][0] * 1e-6, best[MIXED][1] * 1e-6, best[MIXED][0] / best[MIXED][1], worst, machine);
	return 0;
}
