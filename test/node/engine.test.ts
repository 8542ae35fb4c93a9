import { useBed } from './harness/bed';
import { engineVersions } from './harness/engine';
import { boom, hold, loop, replace, wait, workflow } from './harness/workflow';

/** What n8n itself does, seen through the harness: the ground that all other tests here stand on. */
describe.each(engineVersions)('WorkflowExecute of n8n-core %s', (version) => {
  const bed = useBed(version);

  it('runs nodes in order and evaluates expressions', async () => {
    const result = await bed.engine.run(
      workflow([replace('Replace', { answer: '={{ 6 * 7 }}' })], 'Start -> Pass -> Replace'),
      { items: [{ json: { n: 1 } }] },
    );

    expect(result.status).toBe('success');
    expect(result.order).toEqual(['Start', 'Pass', 'Replace']);
    expect(result.items('Pass', 'Output')).toMatchObject([{ json: { n: 1 }, pairedItem: { item: 0 } }]);
  });

  it.each(['continueRegularOutput', 'continueErrorOutput'] as const)(
    'sends the input out of the first output when a node throws under %s',
    async (onError) => {
      const result = await bed.engine.run(workflow([boom('Boom', { onError })], 'Start -> Boom -> Next'), {
        items: [{ json: { n: 1 } }],
      });

      expect(result.status).toBe('success');
      expect(result.items('Next', 'Output')).toMatchObject([{ json: { n: 1 } }]);
    },
  );

  it('loops over items one by one', async () => {
    const result = await bed.engine.run(
      workflow([loop('Loop')], 'Start -> Loop:Loop -> Work -> Loop', 'Loop:Done -> End'),
      { items: [{ json: { n: 1 } }, { json: { n: 2 } }] },
    );

    expect(result.runs('Work')).toHaveLength(2);
    expect(result.items('End', 'Output')).toMatchObject([{ json: { n: 1 } }, { json: { n: 2 } }]);
  });

  it('retries a failed execution at the node that failed', async () => {
    const flow = workflow([boom('Boom')], 'Start -> Before -> Boom -> After');
    const failed = await bed.engine.run(flow);
    const retried = await bed.engine.retry(flow, failed);

    expect([failed.status, failed.error?.message]).toEqual(['error', 'boom']);
    expect(retried.status).toBe('success');
    expect(retried.order).toEqual(['Boom', 'After']);
    expect(retried.executionId).not.toBe(failed.executionId);
  });

  it('suspends an execution and resumes it, also in another process', async () => {
    const flow = workflow([wait('Wait')], 'Start -> Wait -> After');
    const suspended = await bed.engine.run(flow);
    const resumed = await (await bed.secondEngine()).resume(flow, suspended);

    expect(suspended.status).toBe('waiting');
    expect(resumed.status).toBe('success');
    expect(resumed.ran('After')).toBe(true);
  });

  it('runs several executions at the same time and stops one of them', async () => {
    const flow = workflow([hold('Hold')], 'Start -> Hold -> After');
    const [first, second] = [bed.engine.start(flow), bed.engine.start(flow)];
    await Promise.all([first.reached('Hold', 'holding'), second.reached('Hold', 'holding')]);

    first.cancel();
    await second.letGo('Hold');
    expect((await second.finished).status).toBe('success');

    await first.letGo('Hold');
    const stopped = await first.finished;
    expect(stopped.status).toBe('canceled');
    expect(stopped.ran('After')).toBe(false);
  });
});
