/* MPI is loaded and started once a process. */
#include "link/mpi_load.h"

#include "core/hooks.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
	pthread_mutex_t lock; /* MPI is called by one thread at a time */
	struct mpi mpi;       /* protected by lock; calls NULL: not started yet */
} loaded = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int find(char path[PATH_MAX])
{
	static const char *const places[] = {"", "../lib/roundhouse/"};
	char program[PATH_MAX];
	const char *named = getenv(RH_HOOK_MPI);
	ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
	char *slash = length > 0 ? memrchr(program, '/', (size_t)length) : NULL;
	for (int i = named ? -1 : 0; i < 2 && slash; i++) {
		slash[1] = 0;
		if (i < 0)
			snprintf(path, PATH_MAX, "%s", named);
		else if (snprintf(path, PATH_MAX, "%s%sroundhouse-mpi.so", program, places[i]) >= PATH_MAX)
			continue;
		if (!access(path, R_OK))
			return 0;
	}
	return rh_fail(-ENOENT,
	               "link_transport: there is no roundhouse-mpi.so beside this program: install libopenmpi-dev, then make MPI=1");
}

static int load(struct mpi *out)
{
	char path[PATH_MAX];
	int rc = find(path);
	if (rc)
		return rc;
	void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* MPI's own parts look for its symbols */
	const struct rh_mpi_calls *calls = library ? dlsym(library, RH_MPI_CALLS_NAME) : NULL;
	if (!calls)
		return rh_fail(-ENOENT, "link_transport: %s", dlerror());
	if (calls->version != RH_MPI_CALLS_VERSION)
		return rh_fail(-EINVAL, "link_transport: %s is of another version of this program", path);
	*out = (struct mpi){.calls = calls};
	return 0;
}

int mpi_start(const struct rh_mpi_calls *given, struct mpi *out)
{
	char line[RH_MPI_LINE] = "";
	int rc = 0;
	pthread_mutex_lock(&loaded.lock);
	if (given) {
		*out = (struct mpi){.calls = given};
		rc = given->start(&out->rank, &out->ranks, line) ? rh_fail(-EIO, "link_transport: %s", line) : 0;
	} else if (!loaded.mpi.calls) {
		rc = load(out);
		if (!rc && out->calls->start(&out->rank, &out->ranks, line))
			rc = rh_fail(-EIO, "link_transport: %s", line);
		if (!rc)
			loaded.mpi = *out;
	} else {
		*out = loaded.mpi;
	}
	pthread_mutex_unlock(&loaded.lock);
	return rc;
}

int mpi_send(const struct mpi *mpi, const void *bytes, int64_t size, int rank, int tag, struct rh_mpi_request *out)
{
	char line[RH_MPI_LINE] = "";
	pthread_mutex_lock(&loaded.lock);
	int rc = mpi->calls->send(bytes, size, rank, tag, out, line);
	pthread_mutex_unlock(&loaded.lock);
	return rc ? rh_fail(-EIO, "%s", line) : 0;
}

int mpi_receive(const struct mpi *mpi, void *bytes, int64_t size, int rank, int tag, struct rh_mpi_request *out)
{
	char line[RH_MPI_LINE] = "";
	pthread_mutex_lock(&loaded.lock);
	int rc = mpi->calls->receive(bytes, size, rank, tag, out, line);
	pthread_mutex_unlock(&loaded.lock);
	return rc ? rh_fail(-EIO, "%s", line) : 0;
}

int mpi_test(const struct mpi *mpi, struct rh_mpi_request *request)
{
	char line[RH_MPI_LINE] = "";
	pthread_mutex_lock(&loaded.lock);
	int rc = mpi->calls->test(request, line);
	pthread_mutex_unlock(&loaded.lock);
	return rc < 0 ? rh_fail(-EIO, "%s", line) : rc;
}

void mpi_cancel(const struct mpi *mpi, struct rh_mpi_request *request)
{
	pthread_mutex_lock(&loaded.lock);
	mpi->calls->cancel(request);
	pthread_mutex_unlock(&loaded.lock);
}
