/* A machine's usual figure: neither its best nor its worst. */
#ifndef RH_MACHINE_MEDIAN_H
#define RH_MACHINE_MEDIAN_H

/* Of a few values, which it sorts; of two in the middle the larger. */
static inline double doctor_median(double *value, int count)
{
	for (int i = 1; i < count; i++)
		for (int j = i; j > 0 && value[j] < value[j - 1]; j--) {
			double more = value[j - 1];
			value[j - 1] = value[j];
			value[j] = more;
		}
	return value[count / 2];
}

#endif
