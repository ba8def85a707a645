/* How near is the space on NVMe to what fio reaches with the same engine, block size and depth? Reads, writes and both at once of one
 * directory, sequential over a gigabyte that was written before: ours with its checksums, by transfers as runs make them; fio's as it
 * comes. In turn, each round compared with its own, since a drive that is shared wanders; of all rounds the medians count. fio has a
 * second more, to get going.
 *
 * usage: nvme [directory] [seconds of each measurement] [rounds] */
#include "nvme.h"
#include "machine.h"

#include <jansson.h>
#include <string.h>

enum { ROUNDS_MOST = 32 };
static const char *const names[MODES] = {"read", "write", "rw"};

static double fio_run(const char *dir, enum mode mode, const char *engine, double seconds)
{
	char command[1024];
	snprintf(command, sizeof command,
	         "fio --name=roundhouse-bench --directory='%s' --size=%dm --rw=%s --bs=1m --iodepth=%d --ioengine=%s %s --direct=1 "
	         "--thread --time_based --ramp_time=1 --runtime=%g --output-format=json 2>/dev/null",
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
	double seconds = argc > 2 ? atof(argv[2]) : 2, worst = 1e9, rate[MODES][2][ROUNDS_MOST], ratio[MODES][ROUNDS_MOST];
	int rounds = argc > 3 ? atoi(argv[3]) : 3;
	rounds = rounds < 1 ? 1 : rounds > ROUNDS_MOST ? ROUNDS_MOST : rounds;
	struct ours ours;
	struct rh_space_stats stats;
	ours_open(&ours, dir, BY_SPACE);
	rh_space_stats(ours.space, &stats);
	const char *engine = strcmp(stats.engine, "io_uring") ? "psync" : "io_uring";
	printf("%s by %s%s, blocks of 1 MiB, depth %d\n", dir, stats.engine, stats.direct ? ", direct" : "", DEPTH);
	for (int r = 0; r < 2; r++) /* both files are written before anything counts */
		(void)(r ? fio_run(dir, WRITE, engine, seconds) : ours_run(&ours, WRITE, seconds));
	for (int round = 0; round < rounds; round++)
		for (int m = 0; m < MODES; m++)
			for (int i = 0; i < 2; i++) {
				int peer = (round + i) % 2; /* who is first changes too */
				rate[m][peer][round] =
				        peer ? fio_run(dir, (enum mode)m, engine, seconds) : ours_run(&ours, (enum mode)m, seconds);
				if (i)
					ratio[m][round] = rate[m][0][round] / rate[m][1][round];
			}
	double mid[MODES][3];
	for (int m = 0; m < MODES; m++) {
		mid[m][0] = median(rate[m][0], rounds);
		mid[m][1] = median(rate[m][1], rounds);
		mid[m][2] = median(ratio[m], rounds);
		printf("%-5s %8.1f MB/s, fio %8.1f, ratio %.3f (%.3f to %.3f over %d rounds)\n", names[m], mid[m][0] * 1e-6,
		       mid[m][1] * 1e-6, mid[m][2], ratio[m][0], ratio[m][rounds - 1], rounds);
		worst = mid[m][2] < worst ? mid[m][2] : worst;
	}
	ours_close(&ours);
	snprintf(path, sizeof path, "%s/roundhouse-bench.0.0", dir);
	remove(path);
	bench_machine(machine, sizeof machine);
	printf("{\"bench\": \"nvme\", \"value\": %.1f, \"unit\": \"MB/s mixed\", \"reference\": %.1f, \"ratio\": %.3f, \"worst_ratio\": "
	       "%.3f, "
	       "\"machine\": \"%s\"}\n",
	       mid[MIXED][0] * 1e-6, mid[MIXED][1] * 1e-6, mid[MIXED][2], worst, machine);
	return 0;
}
