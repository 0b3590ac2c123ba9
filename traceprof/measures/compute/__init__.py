"""How much is computed: FLOPs of operators and steps, rates against peaks, energy."""
