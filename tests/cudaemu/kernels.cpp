/* Which kernels ran, and with what: one table for all threads of the process. */
#include "block.h"

#include <pthread.h>

enum { MAX_KERNELS = 256, NAME_BYTES = 128 };

static struct {
	const char *signature;
	int threads;
	int64_t dynamic_bytes;
} kernels[MAX_KERNELS]; /* protected by lock */
static int count;       /* protected by lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void cudaemu_note_kernel(const char *signature, int threads, int64_t dynamic_bytes)
{
	pthread_mutex_lock(&lock);
	int i = 0;
	while (i < count && strcmp(kernels[i].signature, signature) != 0)
		i++;
	if (i == MAX_KERNELS)
		cudaemu_abort("more than %d kernels", MAX_KERNELS);
	if (i == count)
		kernels[count++].signature = signature;
	kernels[i].threads = kernels[i].threads > threads ? kernels[i].threads : threads;
	kernels[i].dynamic_bytes = kernels[i].dynamic_bytes > dynamic_bytes ? kernels[i].dynamic_bytes : dynamic_bytes;
	pthread_mutex_unlock(&lock);
}

/* "void cudaemu_launch(...) [with auto Kernel = NAME; A = {...}]" -> NAME */
static void name_of(const char *signature, char *name)
{
	const char *from = strstr(signature, "Kernel = ");
	from = from ? from + strlen("Kernel = ") : signature;
	size_t length = strcspn(from, ";]");
	length = length < NAME_BYTES - 1 ? length : NAME_BYTES - 1;
	memcpy(name, from, length);
	name[length] = 0;
}

void cudaemu_each_kernel(void (*visit)(void *user, const char *name, int threads, int64_t dynamic_bytes), void *user)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < count; i++) {
		char name[NAME_BYTES];
		name_of(kernels[i].signature, name);
		visit(user, name, kernels[i].threads, kernels[i].dynamic_bytes);
	}
	pthread_mutex_unlock(&lock);
}
