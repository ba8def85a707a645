/* roundhouse VERB CONFIG.yaml [--key value]...: only dispatches. */
int main(void)
{
	return 2;
}
