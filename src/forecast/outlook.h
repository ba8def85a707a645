/* A forecast with reasons: which resource limits the run, which change would help most, and how long a sequence may be. Where the run does
 * not fit, the changes after which it would. */
#ifndef RH_FORECAST_OUTLOOK_H
#define RH_FORECAST_OUTLOOK_H

#include "forecast/forecast.h"
#include "forecast/longest.h"

enum rh_bottleneck { RH_LIMIT_COMPUTE, RH_LIMIT_UPLOAD, RH_LIMIT_DOWNLOAD, RH_LIMIT_DRAM, RH_LIMIT_OPTIMIZER, RH_LIMIT_NVME, RH_LIMITS };
const char *rh_bottleneck_name(enum rh_bottleneck limit);

struct rh_advice {
	char text[256]; /* for example "optimizer_staleness: 1"; empty: no change helps */
	double gain;    /* in tokens/s: 0.1 is a tenth more */
};

/* A change after which a run fits. */
struct rh_mend {
	char text[256]; /* for example "max_ram: 61GiB"; it says where the change has other results */
	double tokens_per_second;
};
enum { RH_MENDS_MOST = 8 };

struct rh_outlook {
	int fits;
	char refusal[512];                  /* the error line, where the run does not fit */
	struct rh_mend mend[RH_MENDS_MOST]; /* changes after which it fits, each alone enough, the fastest first */
	int mends;
	int64_t spilled_ram_bytes; /* host memory needed even with everything spilled that can be; 0: spilling is enough, or was not tried */
	int64_t ram_needed_bytes;  /* the least max_ram with which it fits, to one percent; 0: no max_ram alone helps */
	struct rh_forecast forecast;
	double speed_of_light; /* share of the tokens/s at the devices' product peak alone */
	enum rh_bottleneck bottleneck;
	double bottleneck_gain; /* by a quarter more of it */
	struct rh_advice advice;
	struct rh_longest longest, longest_single; /* one row in flight for each device; one in all. Zero where rows are images */
	double run_seconds;                        /* 0: not known */
	int64_t nvme_written_bytes;                /* by the whole run */
};

/* tasks and trace as in rh_forecast. 0 also where the run does not fit. */
int rh_outlook_make(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                    struct rh_tasks *tasks, struct rh_trace *trace, struct rh_outlook *out) RH_MUST;
void rh_outlook_free(struct rh_outlook *outlook);

#endif
