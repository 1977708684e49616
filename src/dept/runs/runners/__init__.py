"""Where independent jobs run: in processes of this machine, on a Ray cluster, or as a SLURM job array."""
