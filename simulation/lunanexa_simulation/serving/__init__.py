"""The world on real time, behind a real front: for client authors and for those who want to watch it recover."""
