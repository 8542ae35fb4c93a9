import type { Attempt } from './history';

/** What must be true of those of one key who do not just wait in turn. Each rule returns what is against it. */

/** What was done is done once: by one who came to its end, and nobody is let in after that. */
export function doneOnce(key: string, attempts: Attempt[]): string[] {
  const faults: string[] = [];
  const marks = new Set(attempts.flatMap(({ doneBefore, token, markedDone }) => doneBefore ?? (markedDone ? token : undefined) ?? []));
  if (marks.size > 1) faults.push(`${key}: done ${marks.size} times, with the tokens ${[...marks].join(', ')}`);
  const [mark] = [...marks].sort((a, b) => a - b);
  if (mark === undefined) return faults;
  const doer = attempts.find(({ token }) => token === mark);
  // One that was killed may have no time to write down what it was given, but then it has not come to its end.
  if (doer?.end === undefined) faults.push(`${key}: done with the token ${mark}, but nobody came to the end with it`);
  for (const { id, token } of attempts) {
    if (Number(token) > mark) faults.push(`${key}: ${id} was let in though ${String(doer?.id)} had done it`);
  }
  return faults;
}

/** Who is served is the newest of those who had come by then, and who is put out has a newer one behind it. */
export function onlyNewest(key: string, attempts: Attempt[]): string[] {
  const faults: string[] = [];
  const tickets = attempts.flatMap(({ ticket }) => ticket ?? []).sort((a, b) => a - b);
  for (const { id, ticket, token, supersededBy } of attempts) {
    if (ticket !== undefined && token !== undefined) {
      const newest = tickets.filter((other) => other < token).at(-1);
      if (newest !== ticket) faults.push(`${key}: ${id} was served though a newer one had come`);
    }
    if (supersededBy !== undefined) {
      const newer = attempts.find((other) => other.id === supersededBy);
      if (!newer) faults.push(`${key}: ${id} was put out by ${supersededBy}, whom nobody knows`);
      else if (Number(newer.ticket) < Number(ticket)) faults.push(`${key}: ${id} was put out by ${newer.id}, which came before`);
    }
  }
  return faults;
}
