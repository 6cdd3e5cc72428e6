"""Who is who in a fleet: names in certificates, enrolment tokens, and what all of a cluster trust."""
